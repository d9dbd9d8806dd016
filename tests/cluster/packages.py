"""Debian packages that the bare single node needs; installed on demand, and said so."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.cluster.cache import cache_dir, exclusive, say
from tests.cluster.errors import ClusterUnavailableError

# Program (or file) -> the Debian package that brings it.
CONTROL_PLANE = {"etcd": "etcd-server", "openssl": "openssl"}
NODE = {
    "containerd": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "ip": "iproute2",
    "unshare": "util-linux",
    "dpkg-deb": "dpkg",
    "kubectl": "kubernetes-client",
}
KUBERNETES_BUILD = {
    "go": "golang-go",
    "rsync": "rsync",
    "make": "make",
    "gcc": "gcc",
    "dpkg-source": "dpkg-dev",
    "/usr/share/gocode/src/github.com/modern-go/reflect2": "golang-github-modern-go-reflect2-dev",
}
IMAGES = {"buildah": "buildah", "debootstrap": "debootstrap"}


def missing(programs: dict[str, str]) -> list[str]:
    """Return the packages of ``programs`` that this machine lacks, sorted."""
    return sorted(
        {
            package
            for program, package in programs.items()
            if not (Path(program).exists() if program.startswith("/") else shutil.which(program))
        }
    )


def require(programs: dict[str, str]) -> None:
    """Make sure that every program is there, installing its package when running as root.

    Raises ClusterUnavailableError, naming the packages, when it cannot be done.
    """
    packages = missing(programs)
    if not packages:
        return
    hint = f"missing Debian packages: {' '.join(packages)}"
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise ClusterUnavailableError(f"{hint} (installing them needs root and apt-get)")
    with exclusive(cache_dir() / "apt.lock", waiting_for="apt-get in another test cluster command"):
        packages = missing(programs)
        if not packages:
            return
        say(f"installing Debian packages: {' '.join(packages)}")
        _apt_get(["update", "-qq"], hint, fatal=False)
        _apt_get(["install", "-y", "-qq", "--no-install-recommends", *packages], hint)
    if still := missing(programs):
        raise ClusterUnavailableError(f"missing even after installation: {' '.join(still)}")


def _apt_get(words: Iterable[str], hint: str, *, fatal: bool = True) -> None:
    environment = {
        **os.environ,
        "DEBIAN_FRONTEND": "noninteractive",
        # Installs etcd and containerd without starting the system's own services of that name.
        "RUNLEVEL": "1",
    }
    result = subprocess.run(
        ["apt-get", "-o", "DPkg::Lock::Timeout=300", *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode and fatal:
        lines = (result.stderr or result.stdout).strip().splitlines()
        raise ClusterUnavailableError(f"{hint}; apt-get: {lines[-1] if lines else 'failed'}")
