"""The Kubernetes programs: given by the user, or built once and kept in the cache."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.cluster.errors import ClusterUnavailableError
from tests.cluster.preparation import kubernetes

API_SERVER = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
"""The programs of a control plane, besides etcd."""
PODS = (*API_SERVER, "kubelet")
"""The programs that run pods."""
ALL = (*PODS, "kubectl")


@dataclass(frozen=True)
class KubeBinaries:
    """A folder of Kubernetes programs."""

    folder: Path

    def path(self, program: str) -> Path:
        """Return the program's path; etcd may also be on PATH."""
        inside = self.folder / program
        if inside.exists():
            return inside
        if found := shutil.which(program):
            return Path(found)
        raise ClusterUnavailableError(f"{program} is neither in {self.folder} nor on PATH")

    def minor_version(self) -> int:
        """Return the minor version of Kubernetes that the API server reports, such as 37.

        Raises ClusterUnavailableError when it reports none.
        """
        return _minor_version(self.path("kube-apiserver"))


def find(programs: Collection[str]) -> KubeBinaries:
    """Return a folder that has all of ``programs``: KUBE_BIN_DIR, or what was built here.

    Raises ClusterUnavailableError, with the remedy, when there is none; nothing is built.
    """
    given = os.environ.get("KUBE_BIN_DIR")
    folder = Path(given) if given else kubernetes.programs_folder()
    missing = [program for program in programs if not (folder / program).exists()]
    if missing and given:
        raise ClusterUnavailableError(f"KUBE_BIN_DIR={given} holds no {', '.join(missing)}")
    if missing:
        raise ClusterUnavailableError(
            f"no {', '.join(missing)} {kubernetes.version()} on this machine yet: `make prepare` "
            "builds them, once (or set KUBE_BIN_DIR to a folder that has them)"
        )
    return KubeBinaries(folder)


@cache
def _minor_version(server: Path) -> int:
    words = subprocess.run([server, "--version"], capture_output=True, text=True, check=False)
    if version := re.search(r"Kubernetes v1\.(\d+)\.", words.stdout):
        return int(version[1])
    raise ClusterUnavailableError(f"{server} --version names no release of Kubernetes 1.x")


def kubectl() -> str:
    """Return kubectl of the Kubernetes under test, or else the one on PATH.

    Raises ClusterUnavailableError when this machine has none.
    """
    try:
        return str(find(("kubectl",)).path("kubectl"))
    except ClusterUnavailableError:
        if found := shutil.which("kubectl"):
            return found
        raise
