"""An elastic job of two to six pods with launchers, whose group the tests watch."""

import json
from typing import Any, Final

from ddp_operator.api.status import DDPJobStatus
from ddp_operator.job.membership.world import read_slots

from tests.integration.jobs import Jobs
from tests.trainer_server import TrainerServer

LEAST, MOST = 2, 6
ELASTIC: Final[dict[str, Any]] = {
    "replicas": MOST,
    "elastic": {"minReplicas": LEAST, "shrinkAfterSeconds": 0, "growAfterSeconds": 0},
}
"""Fields of its spec. The group changes at once."""


class Launchers(TrainerServer):
    """All launchers of a job, at one address. Their processes join each group by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self._generation = 1
        self.world = self._join

    def _join(self, assignment: bytes) -> bytes:
        if assignment:
            self._generation = max(self._generation, json.loads(assignment)["generation"])
        answer = {"number": 1, "generation": self._generation, "ended": True, "scope": "Pod"}
        return json.dumps(answer).encode()


async def until_size(jobs: Jobs, size: int) -> DDPJobStatus:
    """Wait until the job trains with so many pods, and return its status."""

    def has_size(status: DDPJobStatus) -> bool:
        members = read_slots(status.world.members) if status.world else ()
        return (status.phase, status.ready_replicas, len(members)) == ("Running", size, size)

    return await jobs.until(has_size)
