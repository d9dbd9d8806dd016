"""Kueue's program and manifests: given by the user, or of the Go module that is built here."""

from __future__ import annotations

import os
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
_MANIFESTS = "config/components"


def version() -> str:
    """Return the version that ``modules/kueue`` pins, without its ``v``."""
    return required_version(_MODULE, _PATH)


def given() -> Path | None:
    """Return the folder with another Kueue that the user names, if there is one."""
    named = os.environ.get("KUEUE_DIR")
    return Path(named) if named else None


def build() -> GoPrograms:
    """Return the build of the program."""
    return GoPrograms(
        module=_MODULE,
        packages=[f"{_PATH}/cmd/kueue"],
        into=cache_dir("kueue") / f"v{version()}-{content_key(_MODULE)}",
        ldflags=f"-X {_PATH}/pkg/version.GitVersion=v{version()}",
    )


def find() -> Path:
    """Return the program: of KUEUE_DIR, or what was built here.

    Raises ClusterUnavailableError, with the remedy, when it is not there; nothing is built.
    """
    if folder := given():
        missing = [part for part in ("kueue", _MANIFESTS) if not (folder / part).exists()]
        if missing:
            raise ClusterUnavailableError(f"KUEUE_DIR={folder} holds no {', '.join(missing)}")
        return folder / "kueue"
    if build().is_done():
        return build().into / "kueue"
    raise ClusterUnavailableError(
        f"no Kueue {version()} on this machine yet: `make prepare` builds it, once (or set "
        "KUEUE_DIR to a folder with another one)"
    )


def manifests() -> Path:
    """Return the folder of the manifests that this version is installed with."""
    return (given() or module_source(_MODULE, _PATH)) / _MANIFESTS
