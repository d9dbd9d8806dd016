"""Injects faults into a running job, again and again, until the job ends."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.trainer.chaos.blows import Action, Blow, Moment
from tests.trainer.support.pods import Job

_HANG_SECONDS = 150.0
"""A job hangs after so long without a new step: far more than any wait after a blow."""

_DUMP_SECONDS = 3.0

STACKS = {"PYTHONFAULTHANDLER": "1"}
"""With it a rank prints its stacks on SIGABRT."""

PATIENCE = (
    *("--max-restarts", "10000", "--max-reforms", "10000"),
    *("--step-delay-seconds", "0.03", "--heartbeat-timeout-seconds", "2"),
)
"""Flags of a run that survives any number of blows and replaces frozen ranks."""


@dataclass
class Toll:
    """The faults that a job has had."""

    kills: int = 0
    freezes: int = 0
    story: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.kills + self.freezes

    def __str__(self) -> str:
        return f"{self.kills} killed, {self.freezes} frozen"


class _HasEndedError(Exception):
    pass


class Disturbance:
    """The faults of one job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._begin = time.monotonic()
        self._last_step = 0
        self.toll = Toll()

    def strike(self, blows: Iterator[Blow], *, at_most: int) -> None:
        """Inject faults until the job has ended, for at most this many victims.

        Raises:
            AssertionError: the job hangs, or a pod has failed.
        """
        with contextlib.suppress(_HasEndedError):
            while self.toll.total < at_most:
                self._carry_out(next(blows))
        with contextlib.suppress(_HasEndedError):
            while True:
                self._wait_for_a_step()
        for pod in self._job.pods:
            assert pod.process.returncode == 0, self._report("a pod failed")

    def _carry_out(self, blow: Blow) -> None:
        match blow.moment:
            case Moment.TRAINING:
                self._wait_for_a_step()
            case Moment.SAVING:
                self._wait_for_a_save()
            case Moment.REFORMING:
                pass
        time.sleep(blow.delay_seconds)
        struck = [pid for victim in blow.victims if (pid := self._pid(victim)) is not None]
        number = signal.SIGKILL if blow.action is Action.KILL else signal.SIGSTOP
        for pid in struck:
            _signal(pid, number)
        if blow.action is Action.PAUSE:
            time.sleep(blow.pause_seconds)
            for pid in struck:
                _signal(pid, signal.SIGCONT)
        if blow.action is Action.KILL:
            self.toll.kills += len(struck)
        else:
            self.toll.freezes += len(struck)
        self._note(f"{blow.moment.name} {blow.action.name} ranks {blow.victims}: {struck}")

    def _wait_for_a_step(self) -> None:
        self._wait(lambda: self._newest_step() > self._last_step, "a new step")
        self._last_step = self._newest_step()

    def _wait_for_a_save(self) -> None:
        known = {path for path in self._saves() if not (path / "manifest.json").exists()}
        self._wait(
            lambda: any(
                path not in known and not (path / "manifest.json").exists()
                for path in self._saves()
            ),
            "a save",
        )

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _HANG_SECONDS
        while not condition():
            if all(pod.process.poll() is not None for pod in self._job.pods):
                raise _HasEndedError
            for pod in self._job.pods:
                assert pod.process.poll() in (None, 0), self._report("a pod failed")
            assert time.monotonic() < deadline, self._report(f"no sign of {what} in time")
            time.sleep(0.002)

    def _saves(self) -> list[Path]:
        return list(self._job.checkpoints.glob("step-*"))

    def _newest_step(self) -> int:
        """Return the last step that rank 0 began."""
        with contextlib.suppress(FileNotFoundError, IndexError, ValueError):
            with Path(f"{self._job.traces}.rank0").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
                last = file.read().splitlines()[-1]
            return int(json.loads(last)["step"])
        return 0

    def _pid(self, rank: int) -> int | None:
        """Return the ID of the rank's process; None while it restarts."""
        pod = self._job.pods[rank // self._job.local_world_size]
        return pod.pids_of_ranks().get(rank)

    def _note(self, what: str) -> None:
        self.toll.story.append(f"{time.monotonic() - self._begin:6.2f} s: {what}")

    def _report(self, what: str) -> str:
        """Return the faults and logs before a failure, with the stacks of hanging ranks."""
        for pod in self._job.pods:
            for pid in pod.pids_of_ranks().values():
                _signal(pid, signal.SIGCONT)
                _signal(pid, signal.SIGABRT)
        time.sleep(_DUMP_SECONDS)
        logs = itertools.chain.from_iterable(
            [f"== pod {number}", *pod.log.splitlines()[-200:]]
            for number, pod in enumerate(self._job.pods)
        )
        return "\n".join([what, *self.toll.story[-40:], *logs])


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
