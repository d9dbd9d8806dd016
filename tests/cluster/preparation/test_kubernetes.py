"""A build of Kubernetes that is cut off, fails, or is wanted twice; apt and make are stand-ins.

The stand-in for make takes a tree's state for its program: it fails where a file ``half`` lies,
stays where a file ``slow`` lies in the cache, and counts its runs in each tree.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.client import wait_until
from tests.cluster.errors import ClusterUnavailableError
from tests.cluster.preparation import kubernetes
from tests.cluster.preparation.binaries import RECIPE, find
from tests.cluster.preparation.kubernetes import KubernetesBuild

REPOSITORY = Path(__file__).resolve().parents[3]
PROGRAMS = ("kube-apiserver",)

APT_GET = """#!/bin/sh
case "$*" in
*source*)
  mkdir -p kubernetes-1/vendor/github.com/modern-go/reflect2
  echo old >kubernetes-1/vendor/github.com/modern-go/reflect2/reflect2.go;;
esac
"""
MAKE = """#!/bin/sh
echo "run with $*" >>runs
[ -e half ] && { echo "half.go: syntax error"; exit 2; }
mkdir -p _output/bin _output/local/go/cache/00
touch "_output/local/go/cache/00/$(wc -l <runs)-d"
cat >_output/bin/kube-apiserver <<END
#!/bin/sh
echo Kubernetes v1.2.3
END
chmod +x _output/bin/kube-apiserver
while [ -e "$XDG_CACHE_HOME/slow" ]; do sleep 0.05; done
"""
BUILD = """
from tests.cluster.preparation import kubernetes
from pathlib import Path
kubernetes._DEBIAN_REFLECT2 = Path({reflect2!r})
kubernetes.KubernetesBuild().build(("kube-apiserver",), is_last=False)
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of an empty cache, where apt-get and make are the stand-ins."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in (("apt-get", APT_GET), ("make", MAKE)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    reflect2 = tmp_path / "reflect2"
    reflect2.mkdir()
    (reflect2 / "reflect2.go").write_text("new")
    monkeypatch.setattr(kubernetes, "_DEBIAN_REFLECT2", reflect2)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBE_BIN_DIR", raising=False)
    yield tmp_path / "cache"
    (tmp_path / "cache/slow").unlink(missing_ok=True)


def tree(cache: Path) -> Path:
    return cache / "ddp-operator/kubernetes-build" / RECIPE


def runs(cache: Path) -> int:
    """How often make has run in the tree as it stands."""
    return len((tree(cache) / "runs").read_text().splitlines())


def in_another_process(cache: Path) -> subprocess.Popen[str]:
    code = BUILD.format(reflect2=str(cache.parent / "reflect2"))
    return subprocess.Popen(
        [sys.executable, "-c", code], cwd=REPOSITORY, stderr=subprocess.PIPE, text=True
    )


def test_a_build_from_nothing(cache: Path) -> None:
    with pytest.raises(ClusterUnavailableError, match="make prepare"):
        find(PROGRAMS)
    build = KubernetesBuild()
    assert not build.has_source()
    build.build(PROGRAMS, is_last=False)
    assert find(PROGRAMS).version == (1, 2)
    assert build.compiled_parts() == 1
    reflect2 = tree(cache) / "vendor/github.com/modern-go/reflect2/reflect2.go"
    assert reflect2.read_text() == "new"
    build.build(PROGRAMS, is_last=True)
    assert not build.has_source(), "nothing is left to build, and yet the tree stays"


def test_a_build_that_was_cut_off_goes_on_in_its_tree(cache: Path) -> None:
    KubernetesBuild().fetch()
    (tree(cache) / "runs").write_text("cut off\n")
    KubernetesBuild().build(PROGRAMS, is_last=False)
    assert runs(cache) == 2


def test_a_tree_that_was_spoilt_is_unpacked_anew(cache: Path) -> None:
    KubernetesBuild().fetch()
    (tree(cache) / "half").touch()
    build = KubernetesBuild()
    build.build(PROGRAMS, is_last=False)
    assert runs(cache) == 1
    assert not (tree(cache) / "half").exists()
    assert find(PROGRAMS)


def test_a_source_that_was_half_unpacked_is_not_taken_for_whole(cache: Path) -> None:
    half = cache / "ddp-operator/kubernetes-build/source.partial/src/kubernetes-0"
    half.mkdir(parents=True)
    (half / "half").touch()
    assert not KubernetesBuild().has_source()
    KubernetesBuild().build(PROGRAMS, is_last=False)
    assert find(PROGRAMS)


def test_a_build_that_fails_says_why_and_where_its_log_is(cache: Path) -> None:
    build = KubernetesBuild()
    build.fetch()
    (tree(cache) / "half").touch()
    with pytest.raises(ClusterUnavailableError) as failed:
        build.build(PROGRAMS, is_last=False)
    log = cache / "ddp-operator/kubernetes-build.log"
    assert str(failed.value) == (
        f"make WHAT=cmd/kube-apiserver failed (half.go: syntax error); its log is {log}"
    )


def test_of_two_one_builds_and_the_other_waits_and_says_so(cache: Path) -> None:
    cache.mkdir()
    (cache / "slow").touch()
    first = in_another_process(cache)
    wait_until((tree(cache) / "runs").exists, what="first build", deadline_s=60)
    second = in_another_process(cache)
    assert second.stderr is not None
    assert second.stderr.readline() == "waiting for another process: a build of Kubernetes\n"
    (cache / "slow").unlink()
    assert [first.wait(60), second.wait(60)] == [0, 0]
    assert runs(cache) == 1
    for process in (first, second):
        assert process.stderr is not None
        process.stderr.close()


def test_a_build_whose_starter_was_killed_is_not_disturbed(cache: Path) -> None:
    cache.mkdir()
    (cache / "slow").touch()
    first = in_another_process(cache)
    wait_until((tree(cache) / "runs").exists, what="first build", deadline_s=60)
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = in_another_process(cache)
    assert first.stderr is not None
    assert second.stderr is not None
    first.stderr.close()
    # make still runs, and the lock is its own.
    assert second.stderr.readline() == "waiting for another process: a build of Kubernetes\n"
    assert runs(cache) == 1
    (cache / "slow").unlink()
    assert second.wait(60) == 0
    second.stderr.close()
    assert find(PROGRAMS)
