"""Kubernetes' servers, built from Debian's source package; a build that was cut off goes on.

Debian ships Kubernetes as a source package only (its binary package holds kubectl alone), so on a
machine without any Kubernetes download at hand the servers are compiled from it, once.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.cache import cache_dir, exclusive, say
from tests.cluster.errors import ClusterError, ClusterUnavailableError
from tests.cluster.preparation import debian_archive
from tests.cluster.preparation.binaries import RECIPE, built_folder, keep
from tests.cluster.preparation.commands import run

_BUILD_SPACE_BYTES = 6 * 2**30
"""What the tree with its Go cache takes at its largest, with room to spare."""
_DEBIAN_REFLECT2 = Path("/usr/share/gocode/src/github.com/modern-go/reflect2")
"""Where golang-github-modern-go-reflect2-dev keeps its source."""
_REMEDY = (
    "connect this machine to a Debian mirror, or set KUBE_BIN_DIR to a folder with Kubernetes' "
    "server programs"
)


class KubernetesBuild:
    """The tree that is built in, at one place for all processes of this user.

    It stays until the last program is built, and so does Go's cache of what was compiled.
    """

    def __init__(self) -> None:
        self._folder = cache_dir("kubernetes-build")
        self._tree = self._folder / RECIPE
        self._go_cache = self._folder / "go-cache"
        self._log = cache_dir() / "kubernetes-build.log"
        self._is_fresh = False
        """Whether this process has unpacked the tree, so that nobody was cut off in it."""

    def has_source(self) -> bool:
        """Whether the source lies unpacked."""
        return self._tree.is_dir()

    def compiled_parts(self) -> int:
        """How many parts Go has compiled so far, packages and programs."""
        return sum(1 for _ in self._go_cache.glob("??/*-d"))

    def fetch(self) -> None:
        """Download and unpack the source; nothing happens when it is there."""
        with self._lock() as lock:
            self._fetch(lock)

    def build(self, programs: Sequence[str], *, is_last: bool) -> None:
        """Build ``programs`` into the cache, from whatever an earlier build has left.

        `is_last`: nothing else is to be built from this tree, and it goes.

        Raises ClusterUnavailableError, naming the log, when it fails.
        """
        with self._lock() as lock:
            if built_folder(programs) is None:
                self._fetch(lock)
                try:
                    self._make(programs, lock)
                except ClusterUnavailableError:
                    if self._is_fresh:
                        raise
                    # Whoever was cut off may have left half a generated file behind.
                    say(f"the build that was begun in {self._tree} cannot go on; building afresh")
                    shutil.rmtree(self._tree)
                    self._fetch(lock)
                    self._make(programs, lock)
                keep(self._tree / "_output/bin", programs)
            if is_last:
                shutil.rmtree(self._folder)

    def _lock(self) -> contextlib.AbstractContextManager[int]:
        # What runs in the tree holds it too: a build whose starter was killed is not disturbed.
        return exclusive(cache_dir() / "kubernetes.lock", waiting_for="a build of Kubernetes")

    def _make(self, programs: Sequence[str], lock: int) -> None:
        gopath, home = self._tree / ".go", self._folder / "home"
        output = self._tree / "_output/local/go"
        for folder in (gopath / "src/k8s.io", output, home, self._go_cache):
            folder.mkdir(parents=True, exist_ok=True)
        # The GOPATH layout that the package's own debian/rules sets up; and Go's cache where it
        # outlives the tree.
        _link(gopath / "src/k8s.io/kubernetes", Path("../../.."))
        _link(output / "cache", self._go_cache)
        environment = {
            **os.environ,
            "GOPATH": str(gopath),
            "CGO_ENABLED": "0",
            "HOME": str(home),
            "GOFLAGS": "",
            # By default the compiler spends a fifth of its time on collecting garbage, to save
            # memory: it and the linker take less than 2 GB each this way, too.
            "GOGC": "400",
        }
        what = " ".join(f"cmd/{program}" for program in programs)
        # make, not go build: it generates the OpenAPI definitions first.
        run(["make", f"WHAT={what}"], cwd=self._tree, log=self._log, lock=lock, env=environment)

    def _fetch(self, lock: int) -> None:
        if self.has_source():
            return
        if (free := shutil.disk_usage(self._folder).free) < _BUILD_SPACE_BYTES:
            raise ClusterUnavailableError(
                f"building Kubernetes needs {_BUILD_SPACE_BYTES >> 30} GiB in {self._folder}, "
                f"{free >> 30} GiB are free (or set KUBE_BIN_DIR)"
            )
        self._folder.mkdir(parents=True, exist_ok=True)
        scratch = self._folder / "source.partial"
        shutil.rmtree(scratch, ignore_errors=True)
        (scratch / "src").mkdir(parents=True)
        try:
            apt = debian_archive.apt_get(scratch / "apt", "deb-src")
            run([*apt, "update", "-qq"], cwd=scratch, log=self._log, lock=lock)
            source = [*apt, "source", "-qq", "kubernetes"]
            run(source, cwd=scratch / "src", log=self._log, lock=lock)
        except ClusterUnavailableError as error:
            raise ClusterUnavailableError(
                f"cannot have Debian's source package of Kubernetes: {error}; {_REMEDY}"
            ) from error
        trees = [path for path in (scratch / "src").iterdir() if path.is_dir()]
        if len(trees) != 1:
            raise ClusterError(f"expected one source tree of Kubernetes, found {trees}")
        _replace_reflect2(trees[0])
        shutil.rmtree(self._tree, ignore_errors=True)
        trees[0].rename(self._tree)  # complete from the first moment on
        shutil.rmtree(scratch)
        self._is_fresh = True


def _link(link: Path, target: Path) -> None:
    if not link.is_symlink():
        link.symlink_to(target)


def _replace_reflect2(tree: Path) -> None:
    """Put Debian's reflect2 in the place of the one that Kubernetes 1.20 brings along.

    The old one (1.0.1) iterates over maps by Go's internals of before 1.18: built with Go 1.19, the
    API server crashes on the first custom resource. Debian's package (1.0.2) has the correction.
    """
    theirs = tree / "vendor/github.com/modern-go/reflect2"
    for source in theirs.iterdir():
        source.unlink()
    for source in _DEBIAN_REFLECT2.iterdir():
        shutil.copy2(source, theirs / source.name)
