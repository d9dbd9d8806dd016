"""Pods keep and restore snapshots after any losses, in any order."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from ddp_trainer.memory.volume import Key
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from tests.trainer.launcher.memory.network import SimulatedJob, without_threads

LOSSES = st.sampled_from(["", "", "", "request", "answer"])


class Histories(RuleBasedStateMachine):
    """A job with pods that save, send requests, fail and restart, and copies that move."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
        self.steps: dict[int, int] = {}
        """The newest step that each rank wanted to save."""
        self.safe: Key | None = None
        """The newest step that must survive; only a newer one may replace it."""

    @initialize(
        nodes=st.integers(1, 4),
        local_world_size=st.integers(1, 2),
        copies=st.integers(0, 3),
        replicated=st.booleans(),
        full=st.booleans(),
    )
    def begin(
        self, nodes: int, local_world_size: int, copies: int, replicated: bool, full: bool
    ) -> None:
        """`full`: the volumes are as small as they may be."""
        copies = min(copies, nodes - 1)
        self.job = SimulatedJob(
            self.folder,
            nodes=nodes,
            local_world_size=local_world_size,
            copies=copies,
            replicated=replicated,
            size=1000 * 2 * (1 + copies) * local_world_size if full else 1 << 20,
        )
        self.restart()
        assert self.restored is None

    def restart(self) -> None:
        self.steps = dict.fromkeys(range(self.job.world_size), 0)
        self.job.restart()
        self.job.check_restored()
        self.restored = self.job.pods[0].restored().key

    @rule(data=st.data(), skipped=st.integers(0, 2), lose_datagram=st.booleans())
    def save(self, data: st.DataObject, skipped: int, lose_datagram: bool) -> None:
        """A rank saves a later step, a few steps ahead of others."""
        pod = data.draw(st.sampled_from(self.job.pods))
        local_rank = data.draw(st.sampled_from(self.job.savers))
        rank = pod.ranks[local_rank]
        self.steps[rank] += 1 + skipped
        pod.save(local_rank, self.steps[rank], lose_datagram=lose_datagram)

    @rule(data=st.data())
    def reorder(self, data: st.DataObject) -> None:
        """Copies go to other pods from now on."""
        order = data.draw(st.permutations(range(self.job.nodes)))
        self.job.reorder(",".join(map(str, order)))

    @rule(data=st.data(), lost=LOSSES)
    def turn(self, data: st.DataObject, lost: str) -> None:
        """A pod reports and receives the answer; either may be lost."""
        self.job.loses = lambda: lost
        data.draw(st.sampled_from(self.job.pods)).turn()
        self.note_complete()

    @rule(data=st.data())
    def copy(self, data: st.DataObject) -> None:
        """A pod tries to send a copy."""
        pod = data.draw(st.sampled_from(self.job.pods))
        if wanted := pod.wanted():
            copy = data.draw(st.sampled_from(wanted))
            self.job.loses = lambda: data.draw(LOSSES)
            pod.memory.copying.attempt(copy)

    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        """A pod did not take a copy in time."""
        pod = data.draw(st.sampled_from(self.job.pods))
        if wanted := pod.wanted():
            pod.memory.copying._given_up[wanted[0].name.key] = "no answer"

    @rule()
    def all_save(self) -> None:
        """All ranks save the same step."""
        step = max(self.steps.values()) + 1
        self.steps = dict.fromkeys(self.steps, step)
        for pod in self.job.pods:
            for local_rank in self.job.savers:
                pod.save(local_rank, step)

    @rule()
    def settle(self) -> None:
        """Everything arrives."""
        self.job.loses = lambda: ""
        self.job.settle()
        self.note_complete()

    def note_complete(self) -> None:
        complete = self.job.complete()
        if complete is not None:
            self.safe = Key(self.job.generation, complete)

    @rule(data=st.data(), shuffled=st.booleans())
    def fail(self, data: st.DataObject, shuffled: bool) -> None:
        """Some pods are lost and replaced, and all ranks restart; then a step is restored."""
        job = self.job
        self.note_complete()
        survives = job.nodes - 1 if job.replicated else job.copies
        if self.safe is not None and self.safe.generation < job.generation:
            survives = min(survives, job.fewest_copies(self.safe))  # it was restored
        lost = data.draw(st.sets(st.sampled_from(range(job.nodes))))
        for node_rank in lost:
            job.pods[node_rank] = job.create()
        if shuffled:
            job.pods = data.draw(st.permutations(job.pods))
        job.loses = lambda: ""
        self.restart()
        if len(lost) <= survives and self.safe is not None:
            assert self.restored is not None
            assert self.restored >= self.safe
        self.safe = self.restored

    def teardown(self) -> None:
        """Once nothing is lost any more, steps become complete again."""
        if hasattr(self, "job"):
            self.job.loses = lambda: ""
            self.job.settle()
            for _ in range(3):
                self.all_save()
                self.job.settle()
            assert self.job.complete() == max(self.steps.values())
        shutil.rmtree(self.folder)


def test_no_history_mixes_or_loses_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    without_threads(monkeypatch)
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=30,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
