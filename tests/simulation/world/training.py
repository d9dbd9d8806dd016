"""How far training is, and the trainers that tell the operator of it when they are asked."""

import asyncio
import json
from collections.abc import Callable

from ddp_operator.ports import Manifest
from ddp_protocol.world import GroupAssignment, WorldAnswer

from tests.simulation.world.kubelet import is_running
from tests.simulation.world.launchers import ANSWER_SECONDS, Launchers
from tests.simulation.world.server import owner_of

_TIMEOUT_SECONDS = 2.0
"""How long the operator waits for an answer, beyond what it lets a launcher wait for."""


class Training:
    """Steps of each pod, by its UID, and the newest checkpoint of each job, by its UID.

    A script works on after its last step: it evaluates or exports until it exits.
    """

    total_steps: int | None = None
    """How many steps trainers report that they will make; None: they do not report it."""
    is_done = False
    """True: trainers report that the result is safe."""

    def __init__(self) -> None:
        self._steps: dict[str, int] = {}
        self._checkpoints: dict[str, int] = {}

    def proceed(self, pod: Manifest, *, steps: int, save: bool) -> int:
        """Let a pod train on from where it is, or from the checkpoint; return its new step."""
        uid, job = pod["metadata"]["uid"], owner_of(pod)
        step = self._steps.get(uid, self._checkpoints.get(job, 0)) + steps
        if self.total_steps is not None:
            step = min(step, self.total_steps)
        self._steps[uid] = step
        if save or step == self.total_steps:
            self._checkpoints[job] = step
        return step

    def is_complete(self, pod: Manifest) -> bool:
        """Return whether a pod has made its last step, and a checkpoint holds it."""
        done = self._steps.get(pod["metadata"]["uid"], 0), self._checkpoints.get(owner_of(pod), 0)
        return self.total_steps is not None and min(done) >= self.total_steps

    def wipe(self, job: str) -> None:
        """The checkpoints of a job are deleted, or it trains something else from now on."""
        self._checkpoints.pop(job, None)
        self._steps = dict.fromkeys(self._steps, 0)

    def report(self, pod: Manifest) -> bytes | str:
        """Return the answer of a pod's trainer to GET /status."""
        saved = self._checkpoints.get(owner_of(pod), 0)
        step = self._steps.get(pod["metadata"]["uid"], saved)
        checkpoint = {"checkpoint": {"step": saved}} if saved else {}
        total = {"totalSteps": self.total_steps} if self.total_steps else {}
        done = {"done": True} if self.is_done else {}
        return json.dumps({"step": step, **total, **checkpoint, **done}).encode()


class SimulatedTrainers:
    """Implements `ports.Trainers`."""

    def __init__(
        self, training: Training, pods: Callable[[], list[Manifest]], launchers: Launchers
    ) -> None:
        self._training = training
        self._pods = pods
        self._launchers = launchers

    async def status(self, address: str) -> bytes | str:
        await self._answers()
        ip = address.partition(":")[0]
        for pod in self._pods():
            if pod["status"].get("podIP") == ip and is_running(pod):
                if not self._launchers.reaches(pod):
                    break
                return self._training.report(pod)
        return "nobody listens"

    async def dump_stacks(self, address: str, *, token: str) -> bool:
        return await self._answers() and bool(address and token)

    async def traces(self, address: str, *, token: str) -> bytes | str:
        await self._answers()
        pod = self._launchers.at(address)
        return f"{address}: no answer" if pod is None or not token else b'{"ranks": []}'

    async def checkpoint(self, address: str, *, token: str) -> bool:
        return await self._answers() and bool(address and token)

    async def put_world(
        self, address: str, group: GroupAssignment, *, wait_seconds: int, token: str
    ) -> WorldAnswer | None:
        await asyncio.sleep(ANSWER_SECONDS)
        self._launchers.judge_assignment(address)
        self._launchers.late.append((address, group))
        pod = self._launchers.at(address)
        if pod is None or not (token and wait_seconds):
            return None
        answer = self._launchers.take(pod, group)
        in_time = await self._answers(wait_seconds)
        if not in_time or self._launchers.loses_answers:
            return None
        if answer == WorldAnswer(group.generation, ended=True):
            heard_at = self._launchers.heard_at
            heard_at[pod["metadata"]["uid"]] = asyncio.get_running_loop().time()
        return answer

    async def poll_world(
        self, address: str, *, after: int, wait_seconds: int, lead_seconds: int, token: str
    ) -> bytes | str:
        in_time = await self._answers(wait_seconds)
        pod = self._launchers.at(address)
        if pod is None or not (token and in_time and lead_seconds):
            return f"nobody listens, after {after} and {wait_seconds} s"
        return self._launchers.say(pod)

    async def _answers(self, wait_seconds: float = 0.0) -> bool:
        """Return whether an answer comes before the operator gives it up."""
        seconds, most = self._launchers.answer_seconds, wait_seconds + _TIMEOUT_SECONDS
        await asyncio.sleep(min(seconds, most))
        return seconds < most

    async def close(self) -> None:
        """Nothing is open."""
