"""A current API server for custom resources alone, built from Debian's packages of its library.

The Kubernetes that is built from Debian's stable source drops a CRD's rules. In the unstable suite
there is the library that is that part of a current one, with a main program of its own: all that a
CRD asks for is in it, the rules with the limits of their cost too.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from tests.cluster.cache import cache_dir, exclusive
from tests.cluster.errors import ClusterUnavailableError
from tests.cluster.preparation import debian_archive
from tests.cluster.preparation.commands import run

LIBRARY = "golang-k8s-apiextensions-apiserver-dev"
PROGRAM = "apiextensions-apiserver"
RECIPE = "recipe1"
"""Changes when the same packages are built in another way."""
_IMPORT_PATH = "k8s.io/apiextensions-apiserver"
_SUITE = "sid"
_LARGE_BYTES = 4_000_000
"""Packages of libraries above it are two thirds of all bytes; those of today serve only the tests
and samples of other libraries."""
_BUILD_SPACE_BYTES = 3 * 2**30
"""What packages, tree and Go cache take, with room to spare."""


def find() -> Path:
    """Return the newest server that was built here.

    Raises ClusterUnavailableError, with the remedy, when there is none; nothing is built.
    """
    if built := sorted(cache_dir("crd-server").glob(f"*-{RECIPE}/{PROGRAM}"), reverse=True):
        return built[0]
    raise ClusterUnavailableError(
        f"no {PROGRAM} on this machine yet: `make prepare` builds it, once, where Debian's "
        f"{_SUITE} has it"
    )


def is_built() -> bool:
    """Whether the server is there."""
    try:
        find()
    except ClusterUnavailableError:
        return False
    return True


@dataclass(frozen=True)
class _Package:
    name: str
    version: str
    size_bytes: int

    @property
    def is_large(self) -> bool:
        return self.size_bytes > _LARGE_BYTES and self.name.endswith("-dev")


class CrdServerBuild:
    """The tree that the server is built in, at one place for all processes of this user; it goes
    when the server is built, and Go's cache of what was compiled with it."""

    def __init__(self) -> None:
        self._folder = cache_dir() / "crd-server-build"
        self._tree = self._folder / "root"
        self._go_cache = self._folder / "go-cache"
        self._log = cache_dir() / "crd-server-build.log"

    def compiled_parts(self) -> int:
        """How many parts Go has compiled so far, packages and programs."""
        return sum(1 for _ in self._go_cache.glob("??/*-d"))

    def fetch(self) -> None:
        """Download and unpack the packages; nothing happens when they are there."""
        with self._lock() as lock:
            self._fetch(lock)

    def build(self) -> None:
        """Build the server into the cache, from whatever an earlier build has left.

        Raises ClusterUnavailableError, naming the log, when it fails.
        """
        with self._lock() as lock:
            if is_built():
                return
            self._fetch(lock)
            program = self._folder / PROGRAM
            words = ["build", "-ldflags=-s -w", "-o", str(program), _IMPORT_PATH]
            try:
                self._go(self._tree, words, lock)
            except ClusterUnavailableError:
                shutil.rmtree(self._tree)  # the suite moves: another day's packages may do
                raise
            version = (self._tree / "version").read_text()
            program.rename(cache_dir("crd-server", f"{version}-{RECIPE}") / PROGRAM)
            shutil.rmtree(self._folder)

    def _lock(self) -> contextlib.AbstractContextManager[int]:
        # What runs in the tree holds it too.
        return exclusive(cache_dir() / "crd-server.lock", waiting_for=f"a build of {PROGRAM}")

    def _fetch(self, lock: int) -> None:
        if self._tree.is_dir():
            return
        self._folder.mkdir(exist_ok=True)
        if (free := shutil.disk_usage(self._folder).free) < _BUILD_SPACE_BYTES:
            raise ClusterUnavailableError(
                f"building {PROGRAM} needs {_BUILD_SPACE_BYTES >> 30} GiB in {self._folder}, "
                f"{free >> 30} GiB are free"
            )
        scratch = self._folder / "packages.partial"
        shutil.rmtree(scratch, ignore_errors=True)
        (scratch / "root").mkdir(parents=True)
        try:
            apt = debian_archive.apt_get(scratch / "apt", "deb", suite=_SUITE)
            run([*apt, "update", "-qq"], cwd=scratch, log=self._log, lock=lock)
            packages = self._closure(apt, scratch, lock)
            small = [package for package in packages if not package.is_large]
            large = [package for package in packages if package.is_large]
            self._unpack(apt, small, scratch, lock)
            try:
                self._go(scratch / "root", ["list", "-deps", _IMPORT_PATH], lock)
            except ClusterUnavailableError:  # the libraries are not what they were
                self._unpack(apt, large, scratch, lock)
        except ClusterUnavailableError as error:
            raise ClusterUnavailableError(
                f"cannot have {LIBRARY} of Debian's {_SUITE}: {error}; connect this machine to a "
                "Debian mirror"
            ) from error
        [version] = [package.version for package in packages if package.name == LIBRARY]
        (scratch / "root/version").write_text(version)
        (scratch / "root").rename(self._tree)  # complete from the first moment on
        shutil.rmtree(scratch)

    def _closure(self, apt: Sequence[str], scratch: Path, lock: int) -> list[_Package]:
        """Return the library with all that it depends on: Go's libraries, and Go itself."""
        listing = scratch / "listing"
        words = ["install", "-qq", "--print-uris", "--no-install-recommends", LIBRARY, "golang-go"]
        run([*apt, *words], cwd=scratch, log=self._log, lock=lock, output=listing)
        files = re.findall(r"(?m)^'\S+' (\S+?)_(\S+)_\w+\.deb (\d+) ", listing.read_text())
        return [
            _Package(name, unquote(version), int(size))
            for name, version, size in files
            if re.fullmatch(r"golang-.*-dev|golang-[0-9.]+-(go|src)", name)
        ]

    def _unpack(
        self, apt: Sequence[str], packages: Sequence[_Package], scratch: Path, lock: int
    ) -> None:
        names = [package.name for package in packages]
        run([*apt, "download", "-qq", *names], cwd=scratch, log=self._log, lock=lock)
        unpack = 'for file in *.deb; do dpkg-deb --extract "$file" root && rm "$file" || exit; done'
        run(["sh", "-c", unpack], cwd=scratch, log=self._log, lock=lock, comes_last=True)

    def _go(self, root: Path, words: Sequence[str], lock: int) -> None:
        [goroot] = (root / "usr/lib").glob("go-*")
        environment = {
            **os.environ,
            "HOME": str(self._folder),
            "GOROOT": str(goroot),
            "GOPATH": str(root / "usr/share/gocode"),
            "GOCACHE": str(self._go_cache),
            "GO111MODULE": "off",
            "GOTOOLCHAIN": "local",
            "GOFLAGS": "",
            "CGO_ENABLED": "0",
            "GOGC": "400",  # as in the build of Kubernetes
        }
        run(
            [str(goroot / "bin/go"), *words],
            cwd=root,
            log=self._log,
            lock=lock,
            env=environment,
            comes_last=True,
        )
