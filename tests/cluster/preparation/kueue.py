"""Kueue's program, built from its Go module, and the manifests in that module's source."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.cache import cache_dir
from tests.cluster.errors import ClusterUnavailableError
from tests.cluster.preparation.go_modules import (
    MODULES,
    GoPrograms,
    content_key,
    module_source,
    required_version,
)

_MODULE = MODULES / "kueue"
_PATH = "sigs.k8s.io/kueue"


def version() -> str:
    """Return the version that ``modules/kueue`` pins, without its ``v``."""
    return required_version(_MODULE, _PATH)


def build() -> GoPrograms:
    """Return the build of the program."""
    return GoPrograms(
        module=_MODULE,
        packages=[f"{_PATH}/cmd/kueue"],
        into=cache_dir("kueue") / f"v{version()}-{content_key(_MODULE)}",
        ldflags=f"-X {_PATH}/pkg/version.GitVersion=v{version()}",
    )


def find() -> Path:
    """Return the program.

    Raises ClusterUnavailableError, with the remedy, when it is not there; nothing is built.
    """
    if build().is_done():
        return build().into / "kueue"
    raise ClusterUnavailableError(
        f"no Kueue {version()} on this machine yet: `make prepare` builds it, once"
    )


def manifests() -> Path:
    """Return the folder of the manifests that this version is installed with."""
    return module_source(_MODULE, _PATH) / "config/components"
