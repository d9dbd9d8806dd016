"""State of a run so far, for the display and the summary.

Steps and resumptions are read from the pods' output. If a script prints no `step 10/100`, no
progress is shown.
"""

import asyncio
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ddp_operator.api import ranks
from ddp_operator.api.job import DDPJob
from ddp_operator.job.membership.world import members, node_ranks
from ddp_operator.job.pods.state import UNSTARTABLE_REASONS, PodState
from ddp_operator.ports import Key

from ddp_client.local.run.kills import KillRequest

# `step 10/100` anywhere, or a line that begins with its step; not the `step 10` within a sentence.
_STEP = re.compile(
    r"(?:^|.*\b)step[ =:]+(?P<step>\d+) ?/ ?(?P<total>\d+)|step[ =:]+(?P<only>\d+)", re.IGNORECASE
)
_RESUMED = re.compile(
    r"\bresuming from checkpoint .*\(step (?P<step>\d+)\)"
    r"|\bcontinuing from memory at step (?P<kept>\d+)"
)
_LOG_PREFIX = re.compile(r"^(\d\d:\d\d:\d\d )?(\[rank \d+\] )?")


@dataclass(frozen=True, kw_only=True)
class ReportedProgress:
    """Progress of the training when a pod last reported it."""

    step: int
    total_steps: int | None
    text: str
    """The line, without time and rank."""


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A rank that was killed on purpose."""

    request: KillRequest
    pod: str
    at_seconds: float
    step: int | None
    """Last step reported at that time."""


@dataclass(frozen=True, kw_only=True)
class Resumption:
    """Training resumed after a loss."""

    at_seconds: float
    step: int
    source: Literal["memory", "checkpoint", "nothing"]
    """A surviving rank's memory, a checkpoint, or nothing that a line of the log names."""


class RunState:
    """Grows during the run; `until` waits for a condition."""

    def __init__(self, job: DDPJob) -> None:
        self.job = job
        self._one_process_each = ranks.world_size(job.spec) == job.spec.replicas
        self.pods: Sequence[PodState] = ()
        self.progress: ReportedProgress | None = None
        self.losses: list[Loss] = []
        self.resumptions: list[Resumption] = []
        self.running_since: float | None = None
        """When the job first became Running, in seconds since the start."""
        self._last_words: dict[int, str] = {}
        self._begin = time.monotonic()
        self._change = asyncio.Event()

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since the start of the run."""
        return time.monotonic() - self._begin

    @property
    def stuck(self) -> bool:
        """True if the job waits for something that nobody will fix during the run."""
        reason = self.job.status.reason
        return not self.finished and (reason in UNSTARTABLE_REASONS or reason == "Unschedulable")

    @property
    def finished(self) -> bool:
        """True if the job has succeeded or failed."""
        return self.job.status.finished

    @property
    def last_words(self) -> dict[str, Any]:
        """Node rank 0's termination message if it is a JSON object, otherwise an empty one."""
        try:
            words = json.loads(self._last_words.get(members(self.job)[0], ""))
        except ValueError:
            return {}
        return words if isinstance(words, dict) else {}

    def speaker(self, pod: PodState) -> str:
        """Return a pod's name for its log lines: its rank, if it has one."""
        slot = pod.identity.slot
        index = node_ranks(self.job).get(slot)
        return f"pod {slot}" if index is None or not self._one_process_each else f"rank {index}"

    def pod(self, key: Key) -> PodState | None:
        """Return one of the pods, by name."""
        return next((pod for pod in self.pods if pod.key == key), None)

    def newest_pod(self, index: int) -> PodState | None:
        """Return the pod with this node rank, of the latest attempt and replacement."""
        slots = members(self.job)[index : index + 1]
        mine = [pod for pod in self.pods if pod.identity.slot in slots]
        return max(
            mine, key=lambda pod: (pod.identity.attempt, pod.identity.replacement), default=None
        )

    def job_changed(self, job: DDPJob) -> None:
        """Record the job's new state."""
        self.job = job
        self._one_process_each = ranks.world_size(job.spec) == job.spec.replicas
        if self.running_since is None and job.status.phase == "Running":
            self.running_since = self.elapsed_seconds
        self._tell()

    def pods_changed(self, pods: Sequence[PodState]) -> None:
        """Record the pods' new states."""
        self.pods = pods
        for pod in pods:
            if pod.exit and pod.exit.message:
                self._last_words[pod.identity.slot] = pod.exit.message
        self._tell()

    def logged(self, line: str) -> None:
        """Record a line that a pod printed."""
        if match := _RESUMED.search(line):
            resumption = Resumption(
                at_seconds=self.elapsed_seconds,
                step=int(match["step"] or match["kept"]),
                source="memory" if match["kept"] else "checkpoint",
            )
            self.resumptions.append(resumption)
            return
        text = _LOG_PREFIX.sub("", line)
        if match := _STEP.match(text):
            total, step = match["total"], int(match["step"] or match["only"])
            self._note_repetition(step)
            self.progress = ReportedProgress(
                step=step,
                total_steps=int(total) if total else None,
                text=text,
            )
            self._tell()

    def _note_repetition(self, step: int) -> None:
        """Record that training goes back to a step although no line told of a checkpoint."""
        loss = self.losses[-1] if self.losses else None
        if loss is None or loss.step is None or step >= loss.step:
            return
        if not any(known.at_seconds > loss.at_seconds for known in self.resumptions):
            now = self.elapsed_seconds
            self.resumptions.append(Resumption(at_seconds=now, step=step, source="nothing"))

    def lost(self, request: KillRequest, pod: PodState) -> None:
        """Record that a rank was killed as requested."""
        self.losses.append(
            Loss(
                request=request,
                pod=pod.key.name,
                at_seconds=self.elapsed_seconds,
                step=self.progress.step if self.progress else None,
            )
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition, checked after each change."""
        while not condition():
            await self.next_change()

    async def next_change(self) -> None:
        """Wait for the next change of the job, its pods or its progress."""
        await self._change.wait()

    def _tell(self) -> None:
        self._change.set()
        self._change = asyncio.Event()
