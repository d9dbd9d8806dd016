"""The scheduler with the plugin Coscheduling, built from its Go module: `make test-schedulers`.

It is not part of `make prepare`, since it takes as long as Kubernetes itself.
"""

from __future__ import annotations

from pathlib import Path

from tests.cluster.cache import cache_dir
from tests.cluster.errors import ClusterUnavailableError
from tests.cluster.preparation import go_modules
from tests.cluster.preparation.go_modules import (
    MODULES,
    GoPrograms,
    content_key,
    module_source,
    required_version,
)
from tests.cluster.preparation.steps import Stage, go_programs, prepare

_MODULE = MODULES / "coscheduling"
_PATH = "sigs.k8s.io/scheduler-plugins"


def build() -> GoPrograms:
    """Return the build of the scheduler and of the controller of PodGroups."""
    return GoPrograms(
        module=_MODULE,
        packages=[f"{_PATH}/cmd/scheduler", f"{_PATH}/cmd/controller"],
        into=cache_dir("coscheduling")
        / f"v{required_version(_MODULE, _PATH)}-{content_key(_MODULE)}",
    )


def find() -> Path:
    """Return the folder of the programs.

    Raises ClusterUnavailableError, with the remedy, when they are not there; nothing is built.
    """
    if build().is_done():
        return build().into
    raise ClusterUnavailableError("no Coscheduling yet: `make test-schedulers` builds it, once")


def crds() -> list[Path]:
    """Return the files of its CRDs."""
    return sorted((module_source(_MODULE, _PATH) / "config/crd/bases").glob("*.yaml"))


if __name__ == "__main__":
    go_modules.fetch_go()
    prepare([go_programs(build(), "Coscheduling", Stage.API_SERVER, 400)])
