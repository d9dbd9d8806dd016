"""The Kubernetes programs: given by the user, or built once and kept in the cache."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.cache import cache_dir
from tests.cluster.errors import ClusterError, ClusterUnavailableError

API_SERVER = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
"""What a control plane is made of, besides etcd."""
KUBELET = ("kubelet",)
NODE = (*API_SERVER, *KUBELET)
"""What it takes to run pods."""
RECIPE = "recipe2"
"""Changes when the same source is built in another way: what the old way gave is not used again."""


@dataclass(frozen=True)
class KubeBinaries:
    """A folder of Kubernetes programs and the version they report."""

    folder: Path
    version: tuple[int, int]

    def path(self, program: str) -> Path:
        """Return the program's path; etcd may also stand on PATH."""
        inside = self.folder / program
        if inside.exists():
            return inside
        if found := shutil.which(program):
            return Path(found)
        raise ClusterUnavailableError(f"{program} is neither in {self.folder} nor on PATH")


def parse_version(text: str) -> tuple[int, int]:
    """Read (major, minor) from a program's ``--version`` line, such as ``Kubernetes v1.20.2``."""
    match = re.search(r"v(\d+)\.(\d+)", text)
    if match is None:
        raise ClusterError(f"cannot read a Kubernetes version from {text.strip()!r}")
    return int(match[1]), int(match[2])


def find(programs: Collection[str]) -> KubeBinaries:
    """Return a folder that has all of ``programs``: KUBE_BIN_DIR, or what was built here.

    Raises ClusterUnavailableError, with the remedy, when there is none; nothing is built.
    """
    if given := os.environ.get("KUBE_BIN_DIR"):
        folder = Path(given)
        if missing := [program for program in programs if not (folder / program).exists()]:
            raise ClusterUnavailableError(f"KUBE_BIN_DIR={given} holds no {', '.join(missing)}")
        return _described(folder)
    if built := built_folder(programs):
        return _described(built)
    raise ClusterUnavailableError(
        f"no {', '.join(programs)} on this machine yet: `make prepare` builds them, once "
        "(or set KUBE_BIN_DIR to a folder that has them)"
    )


def built_folder(programs: Collection[str]) -> Path | None:
    """Return the newest folder of the cache that has all of ``programs``, if there is one."""
    for folder in sorted(cache_dir("kubernetes").glob(f"*-{RECIPE}"), reverse=True):
        if all((folder / program).exists() for program in programs):
            return folder
    return None


def keep(output: Path, programs: Sequence[str]) -> Path:
    """Copy programs that were just built in ``output`` into the cache; return their folder."""
    version = _version_line(output / programs[0]).split()[-1]
    folder = cache_dir("kubernetes", f"{version}-{RECIPE}")
    for program in programs:
        partial = folder / f".{program}.partial"
        # follow_symlinks: some versions place links to a per-platform folder here.
        shutil.copy2(output / program, partial, follow_symlinks=True)
        partial.rename(folder / program)
    return folder


def _described(folder: Path) -> KubeBinaries:
    return KubeBinaries(folder, parse_version(_version_line(folder / API_SERVER[0])))


def _version_line(program: Path) -> str:
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
