"""Steps are done once, in order, and told; without a network a machine says what it lacks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.errors import ClusterUnavailableError
from tests.cluster.preparation.progress import in_words, remaining_seconds
from tests.cluster.preparation.steps import (
    CLUSTER,
    Stage,
    Step,
    prepare,
    say_what_is_there,
    steps,
)

REPOSITORY = Path(__file__).resolve().parents[3]

PREPARE_CLUSTER = """
from tests.cluster.preparation.steps import CLUSTER, prepare, steps
prepare(steps(CLUSTER))
"""


@pytest.mark.parametrize(
    ("elapsed", "usual", "share", "left"),
    [
        (0, 60, 0, 60),
        (20, 60, 0, 40),
        (61, 60, 0, None),
        # A machine half as fast as usual, by what it has done.
        (60, 60, 0.5, 60),
        (90, 60, 0.5, 90),
        (30, 60, 1.0, 0),
    ],
)
def test_what_is_left(elapsed: float, usual: float, share: float, left: float | None) -> None:
    found = remaining_seconds(elapsed, usual, share=share)
    assert found == (None if left is None else pytest.approx(left))


def test_times_are_for_people() -> None:
    assert [in_words(0.4), in_words(59.6), in_words(130)] == ["0 s", "1 min 0 s", "2 min 10 s"]


def refuse() -> None:
    raise ClusterUnavailableError("no network")


class Machine:
    """Remembers what has been done on it."""

    def __init__(self) -> None:
        self.did: list[str] = []

    def step(self, name: str, stage: Stage, *, done: bool = False) -> Step:
        return Step(
            name=name,
            stage=stage,
            usual_seconds=5,
            is_done=lambda: done,
            run=lambda: self.did.append(name),
        )


def test_what_is_not_done_is_done_stage_by_stage(capsys: pytest.CaptureFixture[str]) -> None:
    machine = Machine()
    wanted = [
        machine.step("images", Stage.IMAGES),
        machine.step("packages", Stage.API_SERVER, done=True),
        machine.step("server", Stage.API_SERVER),
        machine.step("kubelet", Stage.NODE),
    ]
    say_what_is_there(wanted)
    prepare(
        wanted,
        reached=lambda stage: machine.did.append(f"-- {stage.value}"),
    )
    did = ["server", "-- API server", "kubelet", "-- node", "images", "-- images"]
    assert machine.did.index("-- Kueue") > machine.did.index("-- images")
    machine.did.remove("-- Kueue")
    assert machine.did == [*did, "-- Prometheus", "-- Chromium"]
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "there already: packages"
    assert [line for line in lines if "done in" in line] == [
        "preparing 1/3: server, done in 0 s",
        "preparing 2/3: kubelet, done in 0 s",
        "preparing 3/3: images, done in 0 s",
    ]
    assert lines[1] == ("preparing 1/3: server, 0 s (about 5 s more, 15 s with all that follows)")


def test_kueue_is_built_beside_the_stages_after_images() -> None:
    here, there = threading.Event(), threading.Event()
    met: list[bool] = []

    def meet(mine: threading.Event, other: threading.Event) -> None:
        mine.set()
        met.append(other.wait(60))

    machine = Machine()
    browser, kueue = (machine.step(stage.value, stage) for stage in (Stage.BROWSER, Stage.KUEUE))
    prepare(
        [
            machine.step("images", Stage.IMAGES),
            replace(browser, run=partial(meet, here, there)),
            replace(kueue, run=partial(meet, there, here)),
        ],
        reached=lambda stage: machine.did.append(stage.value),
    )
    assert met == [True, True]
    assert machine.did.index("images") < machine.did.index("Kueue")


@pytest.mark.parametrize(
    ("stage", "others"),
    [(Stage.NODE, ["server"]), (Stage.KUEUE, ["server", "images", "pages"])],
)
def test_failed_step_is_raised_and_nothing_follows_it(stage: Stage, others: list[str]) -> None:
    """Only Kueue is built beside the stages after it."""
    machine = Machine()
    broken = replace(machine.step("broken", stage), run=refuse)
    rest = {"server": Stage.API_SERVER, "images": Stage.IMAGES, "pages": Stage.BROWSER}
    with pytest.raises(ClusterUnavailableError, match="no network"):
        prepare([broken, *(machine.step(name, stage) for name, stage in rest.items())])
    assert machine.did == others


def test_failed_optional_step_is_named_and_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    machine = Machine()
    extra = replace(machine.step("extra server", Stage.API_SERVER), run=refuse, is_optional=True)
    prepare([extra, machine.step("images", Stage.IMAGES)])
    assert machine.did == ["images"]
    lines = capsys.readouterr().err.splitlines()
    assert "preparing 1/2: NO EXTRA SERVER ON THIS MACHINE: no network" in lines


def without_network(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["unshare", "--net", sys.executable, *words],
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.cluster
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as all that prepares a node does")
def test_machine_without_network_uses_its_cache_or_names_what_it_lacks(tmp_path: Path) -> None:
    # Not all stages: what the others make may be in the making beside this very test.
    unfinished = [step.name for step in steps(CLUSTER) if not step.is_done()]
    assert not unfinished, "run `make prepare` first"
    ended = without_network("-c", PREPARE_CLUSTER)
    assert ended.returncode == 0, ended.stderr
    assert "preparing" not in ended.stderr
    ended = without_network(
        *("-m", "tests.cluster", "prepare"),
        XDG_CACHE_HOME=str(tmp_path),
        GOMODCACHE=str(tmp_path / "modules"),
        KUBE_BIN_DIR="",
    )
    assert ended.returncode == 2
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("no test cluster on this machine: ")
    assert "go env GOPROXY" in last or "missing Debian packages" in last
