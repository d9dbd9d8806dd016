"""The parts of images without a registry: a base of Debian's packages, and wheels."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from inspect import getsource
from pathlib import Path

from tests.cluster.cache import cache_dir, exclusive
from tests.cluster.errors import ClusterError, ClusterUnavailableError
from tests.cluster.preparation import packages

DEBIAN_SUITE = "bookworm"
PYTHON_VERSION = "3.11"
"""The version in Debian's suite. Wheels are fetched for it, not for the Python that runs this."""
BASE_PACKAGES = ("ca-certificates", "python-is-python3", "python3-venv")
"""python-is-python3: the Dockerfiles say `python`, as Docker's official image has it."""


def base_tag() -> str:
    """Return the base image's name, which contains a hash of its packages and of the code."""
    recipe = hashlib.sha256(" ".join((DEBIAN_SUITE, *BASE_PACKAGES, getsource(make_base))).encode())
    return f"localhost/ddp-base:{recipe.hexdigest()[:12]}"


def has_base() -> bool:
    """Tell whether the base image exists."""
    if packages.missing(packages.IMAGES):
        return False
    return buildah("inspect", "--type", "image", base_tag(), check=False).returncode == 0


def make_base() -> None:
    """Make the base image from Debian's packages.

    Raises ClusterUnavailableError when they cannot be had.
    """
    require()
    with _exclusive():
        if has_base():
            return
        for abandoned in cache_dir().glob("base-*"):
            shutil.rmtree(abandoned)
        with tempfile.TemporaryDirectory(prefix="base-", dir=cache_dir()) as scratch:
            root = Path(scratch, "root")
            try:
                run(
                    *("unshare", "--mount", "debootstrap", "--variant=minbase"),
                    *(f"--include={','.join(BASE_PACKAGES)}", DEBIAN_SUITE, str(root)),
                )
            except ClusterError as error:
                raise ClusterUnavailableError(
                    f"cannot make a base image (it takes a Debian mirror): {error}"
                ) from error
            for pattern in ("var/cache/apt/*", "var/lib/apt/lists/*", "var/log/*"):
                for path in root.glob(pattern):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            for folder in ("usr/share/doc", "usr/share/man", "usr/share/locale"):
                shutil.rmtree(root / folder, ignore_errors=True)
            (Path(scratch) / "Dockerfile").write_text('FROM scratch\nCOPY root /\nCMD ["bash"]\n')
            buildah("build", "--isolation", "chroot", "--tag", base_tag(), scratch)


def wheels(requirements: Path) -> Path:
    """Return the folder for the wheels of locked requirements; it may not exist yet."""
    recipe = PYTHON_VERSION + getsource(fetch_wheels)
    key = hashlib.sha256(recipe.encode() + requirements.read_bytes()).hexdigest()[:16]
    return cache_dir("wheels") / f"{requirements.stem}-{key}"


def fetch_wheels(requirements: Path) -> None:
    """Fetch the wheels of locked requirements.

    Raises ClusterUnavailableError when they cannot be had.
    """
    folder = wheels(requirements)
    with _exclusive():
        if folder.exists():
            return
        for abandoned in cache_dir().glob("wheels-*"):
            shutil.rmtree(abandoned)
        with tempfile.TemporaryDirectory(prefix="wheels-", dir=cache_dir()) as scratch:
            files = Path(scratch, "files")
            files.mkdir()
            download = (
                *(sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(files)),
                *("--only-binary=:all:", f"--python-version={PYTHON_VERSION}"),
                *("--require-hashes", "--requirement", str(requirements)),
            )
            try:
                run(*download)
            except ClusterError as error:
                raise ClusterUnavailableError(
                    f"cannot fetch the wheels of {requirements} (it takes pip's index): {error}"
                ) from error
            for old in folder.parent.glob(f"{requirements.stem}-*"):
                shutil.rmtree(old)
            files.rename(folder)
        if not packages.missing(packages.IMAGES):
            # Layers of former requirements are large, and nothing else removes them.
            buildah("rmi", "--prune", "--force", check=False)


def require() -> None:
    """Raise ClusterUnavailableError unless this machine can build images without Docker."""
    if os.geteuid() != 0:
        raise ClusterUnavailableError("building images needs root (or Docker and kind)")
    packages.check(packages.IMAGES)


def buildah(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run buildah on a store of its own, in a mount namespace from which nothing can leak."""
    store = cache_dir("buildah")
    options = ("--root", str(store / "storage"), "--runroot", str(store / "run"))
    return run("unshare", "--mount", "buildah", *options, *words, check=check)


def run(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command.

    Raises ClusterError, with its last words, when it fails and `check` is set.
    """
    result = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if check and result.returncode:
        tail = "\n".join((result.stdout + result.stderr).strip().splitlines()[-15:])
        raise ClusterError(f"{' '.join(words[:8])} … failed:\n{tail}")
    return result


def _exclusive() -> contextlib.AbstractContextManager[int]:
    return exclusive(cache_dir() / "image-parts.lock", waiting_for="what images are made of")
