"""Ways in which a job loses a rank or a pod, and the steps that its ranks note meanwhile."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from ddp_operator.api.constants import LABEL_INDEX

from tests.cluster.node import Node
from tests.e2e.environment import Environment
from tests.e2e.jobs import Job, force_delete, kill_rank
from tests.e2e.kubectl import Kubectl, wait_for

KINDS = ("kill rank", "kill container", "delete pod", "force-delete pod")
STEP_LOG = "steps"
"""The name for `--trace-samples`; the trainer adds the suffix `.rank<rank>`."""


def disturb(node: Node, job: Job, kind: str, pod: Any) -> None:
    """Do one of KINDS to a pod."""
    name = pod["metadata"]["name"]
    match kind:
        case "kill rank":
            kill_rank(job, name)
        case "kill container":
            node.kill_container(pod)
        case "delete pod":
            job.kubectl.run("delete", "pod", name, "--wait=false")
        case _:
            force_delete(job, name)


def running_pod(job: Job, slot: int) -> Any:
    """Wait for the only running pod of a slot, and return it."""

    def look() -> Any:
        found = [
            pod
            for pod in job.pods()
            if pod["metadata"]["labels"][LABEL_INDEX] == str(slot)
            and pod["status"]["phase"] == "Running"
            and "deletionTimestamp" not in pod["metadata"]
        ]
        return found[0] if len(found) == 1 else None

    return wait_for(look, what=f"the pod of slot {slot}", describe=job.status)


@dataclass(frozen=True)
class StepLog:
    """The steps that ranks have begun, in a folder of this machine."""

    folder: Path
    ranks: int

    def last(self) -> list[int]:
        """Return the last step that each rank has begun; 0 before the first."""
        return [last_step(self._path(rank)) for rank in range(self.ranks)]

    def all(self) -> list[list[int]]:
        """Return all steps that each rank has begun, in order."""
        return [steps_in(self._path(rank).read_text()) for rank in range(self.ranks)]

    def _path(self, rank: int) -> Path:
        return self.folder / f"{STEP_LOG}.rank{rank}"


def step_logs(environment: Environment, kubectl: Kubectl, claim: str, ranks: int) -> list[str]:
    """Return what ranks have noted in the volume of a claim, wherever its node is."""
    return [
        environment.read_volume(kubectl, claim=claim, file=f"{STEP_LOG}.rank{rank}")
        for rank in range(ranks)
    ]


def steps_in(text: str) -> list[int]:
    """Return all steps that a rank has begun, in order, by the text of its file."""
    return [json.loads(line)["step"] for line in text.splitlines()]


def assert_no_step_is_lost(
    steps: Sequence[Sequence[int]], *, total: int, elastic: bool = False
) -> None:
    """Assert that each rank has begun each step of a training, in order, and none of them again but
    those that were under way when a rank was lost.

    Of an elastic job, only all ranks together have begun each step. `steps` is by rank.
    """
    # A rank that is lost may have completed a step that the others had not, and begun the next one.
    back = [
        f"rank {rank} from {then} to {now}"
        for rank, begun in enumerate(steps)
        for then, now in pairwise(begun)
        if now < then - 1
    ]
    assert not back
    for begun in [[*chain(*steps)]] if elastic else steps:
        assert {*begun} == {*range(1, total + 1)}


def samples_of_steps(logs: Iterable[str]) -> dict[int, set[int]]:
    """Return the samples of each step, of all ranks together, by the texts of their files."""
    samples: dict[int, set[int]] = defaultdict(set)
    for line in chain(*map(str.splitlines, logs)):
        entry = json.loads(line)
        samples[entry["step"]].update(entry["samples"])
    return dict(samples)


def assert_each_sample_once(logs: Sequence[str], *, shards: int) -> None:
    """Assert that each epoch of a training has each sample in one step, however often ranks began
    that step. `shards`: how many the last step pads with samples of the first one.
    """
    samples = samples_of_steps(logs)
    entries = (json.loads(line) for line in chain(*map(str.splitlines, logs)))
    epochs = {entry["step"]: entry["epoch"] for entry in entries}
    by_epoch: dict[int, list[int]] = defaultdict(list)
    for step, epoch in epochs.items():
        by_epoch[epoch] += samples[step]
    all_samples = {*chain(*samples.values())}
    for epoch, found in by_epoch.items():
        assert {*found} == all_samples, epoch
        assert len(found) < len(all_samples) + shards, epoch


def returns(begun: Sequence[int]) -> int:
    """Return how often a rank went back to a step that it had begun, by all steps it has begun."""
    return sum(now <= then for then, now in pairwise(begun))


def last_step(path: Path) -> int:
    """Return the last step that a rank has begun, by its file; 0 before the first."""
    if not path.exists():
        return 0
    *lines, _ = path.read_bytes().rsplit(b"\n", 2)
    return int(json.loads(lines[-1])["step"]) if lines and lines[-1] else 0
