from typing import Any

import pytest
from ddp_operator.client.cluster import Cluster
from ddp_operator.client.queues import place_in_queue
from ddp_operator.ports import ForbiddenError, NotFoundError
from ddp_operator.views.job.pods import Pods
from ddp_operator.views.job.screen import screen
from ddp_operator.views.job.snapshot import JobSnapshot

from tests.unit.cli.jobs import seen
from tests.unit.job.builders import later

GROUP = f"{(JOB := seen('Pending', 'Queued')).name}-{JOB.uid[:6]}-0"
ROOT = "/apis/visibility.kueue.x-k8s.io"
QUEUE = "namespaces/research/localqueues/team/pendingworkloads"


class Client:
    """Answers from a table of paths; another path is not found."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self._answers = answers
        self.asked: list[str] = []

    async def request(self, method: str, path: str, *, params: dict[str, str]) -> Any:
        assert (method, params) == ("GET", {"limit": "1000"})
        self.asked.append(path)
        answer = self._answers.get(path, NotFoundError("there is none"))
        if isinstance(answer, Exception):
            raise answer
        return answer


def queued(**spec: Any) -> JobSnapshot:
    wanted = {"scheduling": {"queueName": "team"}, **spec}
    return seen("Pending", "Queued", "2 of 2 pods wait", spec=wanted)


def item(name: str, **places: int) -> dict[str, Any]:
    return {"metadata": {"name": name}, **places}


async def told(client: Client, job: JobSnapshot) -> str:
    return await place_in_queue(Cluster(client), job)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", ["v1beta2", "v1beta1"])
async def test_who_is_ahead_is_counted(version: str) -> None:
    items = [
        item("another", positionInLocalQueue=0, positionInClusterQueue=2),
        item(GROUP, positionInLocalQueue=1, positionInClusterQueue=5),
    ]
    said = await told(Client({f"{ROOT}/{version}/{QUEUE}": {"items": items}}), queued())
    assert said == "1 job ahead in queue team, 5 in all queues that share its quota"


async def test_the_first_has_nobody_ahead() -> None:
    client = Client({f"{ROOT}/v1beta2/{QUEUE}": {"items": [item(GROUP)]}})
    assert await told(client, queued()) == "quota; it is next in queue team"


@pytest.mark.parametrize(
    "answer", [ForbiddenError("no right"), {"items": None}, {"items": [item("another")]}]
)
async def test_where_it_cannot_be_told_nothing_is(answer: Any) -> None:
    client = Client({f"{ROOT}/v1beta2/{QUEUE}": answer})
    assert await told(client, queued()) == ""
    assert len(client.asked) == 1


async def test_without_kueue_nothing_is_told() -> None:
    assert await told(Client({}), queued()) == ""


@pytest.mark.parametrize(
    "job",
    [
        seen("Pending", "Queued"),
        seen("Running", "PodsReady", spec={"scheduling": {"queueName": "team"}}),
    ],
    ids=["no queue", "not waiting"],
)
async def test_nobody_asks_for_a_job_that_waits_in_no_queue(job: JobSnapshot) -> None:
    client = Client({})
    assert await told(client, job) == ""
    assert client.asked == []


def test_it_stands_first_of_what_a_job_waits_for() -> None:
    job = queued()
    lines = screen(job, Pods.of(job, []), later(9), place="3 jobs ahead in queue team")
    assert "waits for  3 jobs ahead in queue team" in lines
