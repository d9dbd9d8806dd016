"""Programs of Go modules: built once, together; a failure is explained. Go is real."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.cache import cache_dir
from tests.cluster.errors import ClusterError, ClusterUnavailableError
from tests.cluster.preparation import binaries, go_modules, kubernetes
from tests.cluster.preparation.go_modules import GoPrograms
from tests.cluster.preparation.steps import Stage, steps
from tests.skipping import skip_or_fail

REPOSITORY = Path(__file__).resolve().parents[3]
HELLO = 'package main\n\nvar version = "none"\n\nfunc main() { println(version) }\n'
BUILD = """
from pathlib import Path
from tests.cluster.preparation.test_go_modules import programs
programs(Path({folder!r})).build()
"""


def programs(folder: Path) -> GoPrograms:
    """Two programs of a module that needs nothing from outside."""
    return GoPrograms(
        module=folder / "module",
        packages=["example.com/hello/cmd/one", "example.com/hello/cmd/two"],
        into=folder / "programs",
        ldflags="-X main.version=v7",
        space_bytes=0,
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module with two programs, and a cache with nothing but what Go has compiled here before:
    its library would take most of each test.
    """
    try:
        go_modules.go_output("version", cwd=tmp_path)
    except ClusterUnavailableError as reason:
        skip_or_fail("GO", reason)
    compiled = cache_dir("go-cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (cache_dir() / "go-cache").symlink_to(compiled)
    for name in ("one", "two"):
        source = tmp_path / "module/cmd" / name
        source.mkdir(parents=True)
        (source / "main.go").write_text(HELLO)
    (tmp_path / "module/go.mod").write_text("module example.com/hello\n\ngo 1.26\n")
    return tmp_path


def test_a_build_from_nothing(folder: Path) -> None:
    build = programs(folder)
    assert (build.is_done(), build.share()) == (False, 0.0)
    build.build()
    assert build.is_done()
    for name in build.names:
        program = folder / "programs" / name
        assert subprocess.run(program, capture_output=True, check=True).stderr == b"v7\n"
    assert sorted(os.listdir(folder / "programs")) == ["one", "two"]
    (folder / "programs/one").write_bytes(b"")
    build.build()
    assert (folder / "programs/one").read_bytes() == b"", "finished programs are not built again"


def test_too_little_space_is_told_before_a_build(folder: Path) -> None:
    build = replace(programs(folder), space_bytes=1 << 60)
    with pytest.raises(ClusterUnavailableError, match=r"needs 1073741824 GiB in .*GiB are free"):
        build.build()
    assert not (folder / "programs").exists()


def test_two_builds_at_once_complete_one_that_was_cut_off(folder: Path) -> None:
    left = folder / "programs/.one.partial"
    left.mkdir(parents=True)
    (left / "one").write_text("half a program")
    others = [
        subprocess.Popen([sys.executable, "-c", BUILD.format(folder=str(folder))], cwd=REPOSITORY)
        for _ in range(2)
    ]
    assert [other.wait() for other in others] == [0, 0]
    assert programs(folder).is_done()
    assert not left.exists()
    assert (folder / "programs/one").stat().st_size > 1000


def test_a_failure_names_the_error_and_the_log(folder: Path) -> None:
    (folder / "module/cmd/two/main.go").write_text("package main\n\nfunc main() { absent() }\n")
    with pytest.raises(ClusterUnavailableError, match=r"undefined: absent.*its log is .*\.log"):
        programs(folder).build()
    assert not programs(folder).is_done()


def test_machine_without_go_or_with_an_old_one_gets_the_remedy(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert not go_modules.has_go()
    with pytest.raises(ClusterUnavailableError, match="`make prepare` gets it"):
        programs(folder).build()
    old = folder / "go"
    old.write_text("#!/bin/sh\necho go version go1.19.8 linux/amd64\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    assert not go_modules.has_go()


@pytest.mark.usefixtures("folder")
def test_programs_that_are_there_need_no_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("KUBE_BIN_DIR", raising=False)
    [go] = [step for step in steps((Stage.API_SERVER,)) if step.name == "Go"]
    assert not go.is_done()
    kubernetes.programs_folder().mkdir()
    for name in binaries.ALL:
        (kubernetes.programs_folder() / name).touch()
    assert go.is_done()


def test_staging_modules_get_the_version_of_kubernetes() -> None:
    theirs = (
        "module k8s.io/kubernetes\n\ngo 1.26.0\n\ngodebug default=go1.26\n\n"
        "require (\n\tk8s.io/api v0.0.0\n\tk8s.io/utils v0.0.0-2026\n)\n\n"
        "replace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n)\n"
    )
    assert kubernetes.go_mod(theirs, "1.37.2") == (
        "module ddp-operator.io/test-cluster/kubernetes\n\ngo 1.26.0\n\ngodebug default=go1.26\n\n"
        "require k8s.io/kubernetes v1.37.2\n\nreplace (\n\tk8s.io/api => k8s.io/api v0.37.2\n)\n"
    )


def test_the_version_is_a_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(kubernetes.VERSION_VARIABLE, raising=False)
    assert kubernetes.version() == kubernetes.pinned_version()
    monkeypatch.setenv(kubernetes.VERSION_VARIABLE, "v1.37.2")
    assert kubernetes.version() == "1.37.2"
    monkeypatch.setenv(kubernetes.VERSION_VARIABLE, "1.37")
    with pytest.raises(ClusterError, match=r"1\.37 is no release: write one such as"):
        kubernetes.version()


def test_interrupted_module_of_another_release_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(kubernetes.VERSION_VARIABLE, "1.37.2")
    theirs = tmp_path / "theirs"
    theirs.write_text("module k8s.io/kubernetes\n\ngo 1.26.0\n")
    failing = ["tidy"]

    def go(*words: str, cwd: Path) -> str:
        (cwd / "go.sum").write_text("k8s.io/kubernetes v1.37.2 h1:a=\n")
        if words[-1] in failing:
            raise ClusterUnavailableError("no network")
        return f'{{"GoMod": "{theirs}"}}'

    monkeypatch.setattr(kubernetes, "go_output", go)
    with pytest.raises(ClusterUnavailableError):
        kubernetes.write_module(["kubelet"])
    assert not kubernetes.has_module()
    failing.clear()
    kubernetes.write_module(["kubelet"])
    assert kubernetes.has_module()
    files = {"go.mod", "go.sum", "tools.go"}
    assert {file.name for file in kubernetes.module().iterdir()} == files


def test_content_key_changes_with_each_pinned_version(tmp_path: Path) -> None:
    (tmp_path / "go.mod").write_text("module example.com/hello\n")
    (tmp_path / "go.sum").write_text("example.com/other v1.0.0 h1:a=\n")
    first = go_modules.content_key(tmp_path)
    assert go_modules.content_key(tmp_path) == first
    (tmp_path / "go.sum").write_text("example.com/other v1.0.1 h1:b=\n")
    assert go_modules.content_key(tmp_path) != first
