"""Ways in which a job loses a rank or a pod, and the steps that its ranks note meanwhile."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddp_operator.api.constants import LABEL_INDEX

from tests.cluster.node import Node
from tests.e2e.jobs import Job, force_delete, kill_rank
from tests.e2e.kubectl import wait_for

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

    def all_of(self, rank: int) -> list[int]:
        """Return all steps that a rank has begun, in order."""
        return [json.loads(line)["step"] for line in self._path(rank).read_text().splitlines()]

    def _path(self, rank: int) -> Path:
        return self.folder / f"{STEP_LOG}.rank{rank}"


def last_step(path: Path) -> int:
    """Return the last step that a rank has begun, by its file; 0 before the first."""
    if not path.exists():
        return 0
    *lines, _ = path.read_bytes().rsplit(b"\n", 2)
    return int(json.loads(lines[-1])["step"]) if lines and lines[-1] else 0
