"""The Kubernetes programs: given by the user, found in the cache, or built once from source.

Debian ships Kubernetes as a source package only (its binary package holds kubectl alone), so on a
machine without any Kubernetes download at hand the servers are compiled from it, once.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import packages
from tests.cluster.cache import cache_dir, exclusive, say
from tests.cluster.errors import ClusterError, ClusterUnavailableError

SERVERS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
# Changes when the same source is built in another way: what the old way gave is not used again.
RECIPE = "recipe2"
# What a build tree with its Go cache takes at its largest, with room to spare.
BUILD_SPACE_BYTES = 6 * 2**30
# Where golang-github-modern-go-reflect2-dev keeps its source.
DEBIAN_REFLECT2 = Path("/usr/share/gocode/src/github.com/modern-go/reflect2")


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


def find_or_build() -> KubeBinaries:
    """Return the programs from KUBE_BIN_DIR, the cache, or a build that takes minutes."""
    if given := os.environ.get("KUBE_BIN_DIR"):
        folder = Path(given)
        if not (folder / "kube-apiserver").exists():
            raise ClusterUnavailableError(f"KUBE_BIN_DIR={given} holds no kube-apiserver")
        return _described(folder)
    if cached := _cached():
        return _described(cached)
    with exclusive(cache_dir() / "kubernetes.lock", waiting_for="a build of Kubernetes"):
        return _described(_cached() or _build())


def _described(folder: Path) -> KubeBinaries:
    output = subprocess.run(
        [folder / "kube-apiserver", "--version"], capture_output=True, text=True, check=True
    ).stdout
    return KubeBinaries(folder, parse_version(output))


def _cached() -> Path | None:
    for folder in sorted(cache_dir("kubernetes").glob(f"*-{RECIPE}"), reverse=True):
        if all((folder / program).exists() for program in SERVERS):
            return folder
    return None


def _build() -> Path:
    packages.require(packages.KUBERNETES_BUILD)
    parent = cache_dir()
    if (free := shutil.disk_usage(parent).free) < BUILD_SPACE_BYTES:
        raise ClusterUnavailableError(
            f"building Kubernetes needs {BUILD_SPACE_BYTES >> 30} GiB in {parent}, "
            f"{free >> 30} GiB are free (or set KUBE_BIN_DIR)"
        )
    for stale in parent.glob("kubernetes-build-*"):
        shutil.rmtree(stale)  # left by a build that was killed; the lock says nobody works in it
    say("building Kubernetes from Debian's source package (once, 5 to 15 minutes)")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kubernetes-build-", dir=parent) as scratch:
        log = parent / "kubernetes-build.log"
        tree = _source(Path(scratch), log)
        home = Path(scratch, "home")
        _replace_reflect2(tree)
        gopath = tree / ".go"
        home.mkdir()
        # The GOPATH layout that the package's own debian/rules sets up.
        (gopath / "src/k8s.io").mkdir(parents=True)
        (gopath / "src/k8s.io/kubernetes").symlink_to("../../..")
        what = " ".join(f"cmd/{program}" for program in SERVERS)
        environment = {
            **os.environ,
            "GOPATH": str(gopath),
            "CGO_ENABLED": "0",
            "HOME": str(home),
            "GOFLAGS": "",
        }
        # make, not go build: it generates the OpenAPI definitions first.
        _run(["nice", "make", f"WHAT={what}"], cwd=tree, log=log, env=environment)
        return _keep(tree / "_output/bin", took_s=time.monotonic() - started)


def _replace_reflect2(tree: Path) -> None:
    """Put Debian's reflect2 in the place of the one that Kubernetes 1.20 brings along.

    The old one (1.0.1) iterates over maps by Go's internals of before 1.18: built with Go 1.19, the
    API server crashes on the first custom resource. Debian's package (1.0.2) has the correction.
    """
    theirs = tree / "vendor/github.com/modern-go/reflect2"
    for source in theirs.iterdir():
        source.unlink()
    for source in DEBIAN_REFLECT2.iterdir():
        shutil.copy2(source, theirs / source.name)


def _keep(output: Path, *, took_s: float) -> Path:
    version = subprocess.run(
        [output / "kube-apiserver", "--version"], capture_output=True, text=True, check=True
    ).stdout.split()[-1]
    target = cache_dir("kubernetes") / f"{version}-{RECIPE}"
    partial = cache_dir("kubernetes") / f".{version}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    for program in SERVERS:
        # follow_symlinks: some versions place links to a per-platform folder here.
        shutil.copy2(output / program, partial / program, follow_symlinks=True)
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    say(f"built Kubernetes {version} in {took_s:.0f} s: {target}")
    return target


def _source(scratch: Path, log: Path) -> Path:
    """Fetch and unpack the source package without touching the system's list of sources."""
    sources = _source_entries()
    for folder in ("sources.d", "lists/partial", "src"):
        (scratch / folder).mkdir(parents=True)
    (scratch / "sources.d/src.sources").write_text(sources)
    apt = [
        "apt-get",
        *("-o", "Dir::Etc::SourceList=/dev/null"),
        *("-o", f"Dir::Etc::SourceParts={scratch / 'sources.d'}"),
        *("-o", f"Dir::State::Lists={scratch / 'lists'}"),
        *("-o", "Dir::Cache::srcpkgcache="),
        *("-o", "Dir::Cache::pkgcache="),
        *("-o", "APT::Sandbox::User=root"),
    ]
    _run([*apt, "update", "-qq"], cwd=scratch, log=log)
    _run([*apt, "source", "-qq", "kubernetes"], cwd=scratch / "src", log=log)
    trees = [path for path in (scratch / "src").iterdir() if path.is_dir()]
    if len(trees) != 1:
        raise ClusterError(f"expected one source tree of Kubernetes, found {trees}")
    return trees[0]


def _source_entries() -> str:
    """Return deb822 source entries for the Debian mirrors that this machine uses already."""
    modern = Path("/etc/apt/sources.list.d/debian.sources")
    if modern.exists():
        return re.sub(r"(?m)^Types:.*$", "Types: deb-src", modern.read_text())
    classic = Path("/etc/apt/sources.list")
    lines = classic.read_text().splitlines() if classic.exists() else []
    entries = []
    for line in lines:
        if match := re.match(r"deb\s+(?:\[[^]]*\]\s+)?(\S+debian\S*)\s+(\S+)\s+(.+)", line):
            uri, suite, components = match.groups()
            entries.append(
                f"Types: deb-src\nURIs: {uri}\nSuites: {suite}\nComponents: {components}\n"
            )
    if not entries:
        raise ClusterUnavailableError(
            "no Debian package sources to build Kubernetes from; set KUBE_BIN_DIR"
        )
    return "\n".join(entries)


def _run(argv: list[str], *, cwd: Path, log: Path, env: dict[str, str] | None = None) -> None:
    with log.open("ab") as output:
        code = subprocess.run(
            argv, cwd=cwd, env=env, stdout=output, stderr=output, check=False
        ).returncode
    if code:
        tail = log.read_text(errors="replace").strip().splitlines()[-1:]
        raise ClusterUnavailableError(f"{' '.join(argv[:3])} failed, see {log}: {' '.join(tail)}")
