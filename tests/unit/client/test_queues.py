from typing import Any

import pytest
from ddp_operator.client.cluster import Cluster
from ddp_operator.client.queues import place_in_queue, queue_state
from ddp_operator.ports import ForbiddenError, NotFoundError
from ddp_operator.views.job.pods import Pods
from ddp_operator.views.job.queueing import UNKNOWN, QueueState
from ddp_operator.views.job.screen import screen
from ddp_operator.views.job.snapshot import JobSnapshot

from tests.unit.cli.jobs import seen
from tests.unit.job.builders import later

GROUP = f"{(JOB := seen('Pending', 'Queued')).name}-{JOB.uid[:6]}-0"
ROOT = "/apis/visibility.kueue.x-k8s.io"
QUEUE = "namespaces/research/localqueues/team/pendingworkloads"
KUEUE = "/apis/kueue.x-k8s.io"
WORKLOAD = f"namespaces/research/workloads/{GROUP}"
LOCAL_QUEUE = "namespaces/research/localqueues/team"


class Client:
    """Answers from a table of paths; another path is not found."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self._answers = answers
        self.asked: list[str] = []

    async def request(self, method: str, path: str, *, params: dict[str, str] | None) -> Any:
        assert (method, params) == ("GET", {"limit": "1000"} if "pending" in path else None)
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


async def test_the_first_of_its_queue_waits_for_other_queues() -> None:
    items = [item(GROUP, positionInClusterQueue=3)]
    said = await told(Client({f"{ROOT}/v1beta2/{QUEUE}": {"items": items}}), queued())
    assert said == "3 jobs ahead in all queues that share its quota; it is next in queue team"


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
    queue = QueueState("3 jobs ahead in queue team")
    lines = screen(job, Pods.of(job, []), later(9), queue=queue)
    assert "waits for  3 jobs ahead in queue team" in lines


def condition(type_: str, message: str, status: str = "False") -> dict[str, Any]:
    return {"type": type_, "status": status, "reason": "Pending", "message": message}


def status(*conditions: dict[str, Any]) -> dict[str, Any]:
    return {"status": {"conditions": [*conditions]}}


WAITING = status(condition("QuotaReserved", "insufficient unused quota"))
HELD = status(condition("QuotaReserved", "ClusterQueue shared is inactive"))


async def state(client: Client, job: JobSnapshot | None = None) -> QueueState:
    return await queue_state(Cluster(client), job or queued(), later(9))  # type: ignore[arg-type]


@pytest.mark.parametrize("version", ["v1beta2", "v1beta1"])
async def test_the_workload_tells_the_cause(version: str) -> None:
    client = Client(
        {
            f"{KUEUE}/{version}/{WORKLOAD}": WAITING,
            f"{ROOT}/{version}/{QUEUE}": {"items": [item(GROUP)]},
        }
    )
    found = await state(client)
    assert (found.position, found.cause) == (
        "quota; it is next in queue team",
        "insufficient unused quota",
    )
    assert not [path for path in client.asked if path.endswith(LOCAL_QUEUE)]


async def test_the_queue_says_why_it_is_closed() -> None:
    local = {"spec": {"clusterQueue": "shared"}, **status(condition("Active", "cannot submit"))}
    answers: dict[str, Any] = {
        f"{KUEUE}/v1beta2/{WORKLOAD}": HELD,
        f"{KUEUE}/v1beta2/{LOCAL_QUEUE}": local,
    }
    whole = f"{KUEUE}/v1beta2/clusterqueues/shared"
    stopped = status(condition("Active", "Can't admit new workloads: is stopped."))
    for answer, why in (
        (stopped, "Can't admit new workloads: is stopped"),
        (ForbiddenError("no right"), "cannot submit"),
        ({}, "cannot submit"),
    ):
        found = await state(Client({**answers, whole: answer}))
        assert found.cause == f"ClusterQueue shared is inactive: {why}"


@pytest.mark.parametrize("name", ["a/../../secrets", "", None, 7])
async def test_only_a_name_becomes_part_of_a_request(name: Any) -> None:
    client = Client(
        {
            f"{KUEUE}/v1beta2/{WORKLOAD}": HELD,
            f"{KUEUE}/v1beta2/{LOCAL_QUEUE}": {
                "spec": {"clusterQueue": name},
                **status(condition("Active", "cannot submit")),
            },
        }
    )
    assert (await state(client)).cause.endswith(": cannot submit")
    assert not [path for path in client.asked if "secrets" in path]


@pytest.mark.parametrize("answer", [ForbiddenError("no right"), {"status": 7}, {}])
async def test_without_a_readable_workload_the_position_is_left(answer: Any) -> None:
    client = Client(
        {
            f"{KUEUE}/v1beta2/{WORKLOAD}": answer,
            f"{ROOT}/v1beta2/{QUEUE}": {"items": [item(GROUP)]},
        }
    )
    assert await state(client) == QueueState("quota; it is next in queue team")


async def test_without_kueue_the_state_is_unknown() -> None:
    assert await state(Client({})) == UNKNOWN


async def test_a_job_in_no_queue_costs_no_request() -> None:
    client = Client({})
    assert await state(client, seen("Pending", "Queued")) == UNKNOWN
    assert client.asked == []
