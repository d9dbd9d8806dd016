"""Debian packages that the bare single node needs: installed in one go, and on record."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
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
}
BROWSER = {"chromium": "chromium", "chromedriver": "chromium-driver"}
IMAGES = {"buildah": "buildah", "debootstrap": "debootstrap"}

APT_GET = ("apt-get", "-o", "DPkg::Lock::Timeout=300", "-o", "APT::Sandbox::User=root")
APT_ENVIRONMENT = {
    "DEBIAN_FRONTEND": "noninteractive",
    # Installs etcd and containerd without starting the system's own services of that name.
    "RUNLEVEL": "1",
}


def installed_here() -> Path:
    """Return the file that lists what was installed on this machine for the tests, a package a
    line: dependencies too, and nothing that was there before.
    """
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local/state")
    return Path(base, "ddp-operator", "installed-packages")


def missing(programs: Mapping[str, str]) -> list[str]:
    """Return the packages of ``programs`` that this machine lacks, sorted."""
    return sorted(
        {
            package
            for program, package in programs.items()
            if not (Path(program).exists() if program.startswith("/") else shutil.which(program))
        }
    )


def check(programs: Mapping[str, str]) -> None:
    """Raise ClusterUnavailableError, with the remedy, unless every program is there."""
    if packages := missing(programs):
        raise ClusterUnavailableError(
            f"missing Debian packages: {' '.join(packages)} (`make prepare` installs them, as root)"
        )


def install(programs: Mapping[str, str]) -> None:
    """Make sure that every program is there; say what was, and what had to be installed.

    Raises ClusterUnavailableError, naming the packages, when it cannot be done.
    """
    packages = missing(programs)
    present = sorted(set(programs.values()) - set(packages))
    if present:
        say(f"Debian packages that were there already: {' '.join(present)}")
    if not packages:
        return
    hint = f"missing Debian packages: {' '.join(packages)}"
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise ClusterUnavailableError(f"{hint} (installing them needs root and apt-get)")
    with exclusive(cache_dir() / "apt.lock", waiting_for="apt-get in another test cluster command"):
        before = _installed()
        say(f"Debian packages that are being installed: {' '.join(packages)}")
        _apt_get(["update", "-qq"], hint, fatal=False)
        try:
            _apt_get(["install", "-y", "-qq", "--no-install-recommends", *packages], hint)
        finally:
            _record(_installed() - before)
    if still := missing(programs):
        raise ClusterUnavailableError(f"missing even after installation: {' '.join(still)}")


def download(package: str, *, into: Path) -> Path:
    """Download a package's file without installing it.

    Raises ClusterUnavailableError when it cannot be had.
    """
    hint = f"cannot download Debian's {package} (connect this machine to a Debian mirror)"
    words = ["download", "-qq", package]
    try:
        _apt_get(words, hint, cwd=into)
    except ClusterUnavailableError:  # for instance since no list of packages was ever fetched
        _apt_get(["update", "-qq"], hint, fatal=False)
        _apt_get(words, hint, cwd=into)
    (file,) = into.glob(f"{package}_*.deb")
    return file


def unpacked(package: str, *, into: Path) -> Path:
    """Return a folder with a package's files, downloaded and not installed.

    Raises ClusterUnavailableError when it cannot be had.
    """
    check({"dpkg-deb": "dpkg"})
    folder = into / "files"
    subprocess.run(["dpkg-deb", "--extract", download(package, into=into), folder], check=True)
    return folder


def _installed() -> set[str]:
    listed = subprocess.run(
        ["dpkg-query", "--show", "--showformat", "${db:Status-Abbrev} ${binary:Package}\n"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return {line.split()[-1] for line in listed.splitlines() if line.startswith("ii ")}


def _record(packages: set[str]) -> None:
    file = installed_here()
    known = set(file.read_text().split()) if file.exists() else set()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{package}\n" for package in sorted(known | packages)))


def _apt_get(
    words: Iterable[str], hint: str, *, fatal: bool = True, cwd: Path | None = None
) -> None:
    result = subprocess.run(
        [*APT_GET, *words],
        cwd=cwd,
        env={**os.environ, **APT_ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode and fatal:
        lines = (result.stderr or result.stdout).strip().splitlines()
        raise ClusterUnavailableError(f"{hint}; apt-get: {lines[-1] if lines else 'failed'}")
