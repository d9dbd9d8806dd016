from typing import Any

import pytest
from ddp_client.remote.cluster import Cluster
from ddp_client.remote.queues import queue_state
from ddp_client.views.job.pods import Pods
from ddp_client.views.job.queueing import UNKNOWN, QueueState
from ddp_client.views.job.screen import screen
from ddp_client.views.job.snapshot import JobSnapshot
from ddp_operator.ports import ForbiddenError, NotFoundError

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


async def place_of(client: Client, job: JobSnapshot) -> str:
    return (await state(client, job)).position


@pytest.mark.parametrize("version", ["v1beta2", "v1beta1"])
async def test_jobs_ahead_are_counted(version: str) -> None:
    items = [
        item("another", positionInLocalQueue=0, positionInClusterQueue=2),
        item(GROUP, positionInLocalQueue=1, positionInClusterQueue=5),
    ]
    said = await place_of(Client({f"{ROOT}/{version}/{QUEUE}": {"items": items}}), queued())
    assert said == "1 job ahead in queue team, 5 in all queues that share its quota"


async def test_first_job_is_next() -> None:
    client = Client({f"{ROOT}/v1beta2/{QUEUE}": {"items": [item(GROUP)]}})
    assert await place_of(client, queued()) == "quota; it is next in queue team"


async def test_first_job_waits_for_other_queues() -> None:
    items = [item(GROUP, positionInClusterQueue=3)]
    said = await place_of(Client({f"{ROOT}/v1beta2/{QUEUE}": {"items": items}}), queued())
    assert said == "3 jobs ahead in all queues that share its quota; it is next in queue team"


@pytest.mark.parametrize(
    "answer", [ForbiddenError("no right"), {"items": None}, {"items": [item("another")]}]
)
async def test_unreadable_position_is_empty(answer: Any) -> None:
    client = Client({f"{ROOT}/v1beta2/{QUEUE}": answer})
    assert await place_of(client, queued()) == ""
    assert sum("pendingworkloads" in path for path in client.asked) == 1


@pytest.mark.parametrize(
    "job",
    [
        seen("Pending", "Queued"),
        seen("Running", "PodsReady", spec={"scheduling": {"queueName": "team"}}),
    ],
    ids=["no queue", "not waiting"],
)
async def test_job_that_waits_in_no_queue_costs_no_request(job: JobSnapshot) -> None:
    client = Client({})
    assert await place_of(client, job) == ""
    assert await state(client, job) == UNKNOWN
    assert client.asked == []


def test_position_is_on_the_screen() -> None:
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
    return await queue_state(Cluster(client), job or queued())  # type: ignore[arg-type]


@pytest.mark.parametrize("version", ["v1beta2", "v1beta1"])
async def test_cause_comes_from_the_workload(version: str) -> None:
    client = Client(
        {
            f"{KUEUE}/{version}/{WORKLOAD}": WAITING,
            f"{ROOT}/{version}/{QUEUE}": {"items": [item(GROUP)]},
        }
    )
    found = await state(client)
    assert (found.position, found.message) == (
        "quota; it is next in queue team",
        "insufficient unused quota",
    )


async def test_cause_of_a_closed_queue() -> None:
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
        assert found.message == f"ClusterQueue shared is inactive: {why}"


@pytest.mark.parametrize("name", ["a/../../secrets", "", None, 7])
async def test_invalid_queue_name_is_never_requested(name: Any) -> None:
    client = Client(
        {
            f"{KUEUE}/v1beta2/{WORKLOAD}": HELD,
            f"{KUEUE}/v1beta2/{LOCAL_QUEUE}": {
                "spec": {"clusterQueue": name},
                **status(condition("Active", "cannot submit")),
            },
        }
    )
    assert (await state(client)).message.endswith(": cannot submit")
    assert not [path for path in client.asked if "secrets" in path]


@pytest.mark.parametrize("answer", [ForbiddenError("no right"), {"status": 7}, {}])
async def test_unreadable_workload_leaves_the_position(answer: Any) -> None:
    client = Client(
        {
            f"{KUEUE}/v1beta2/{WORKLOAD}": answer,
            f"{ROOT}/v1beta2/{QUEUE}": {"items": [item(GROUP)]},
        }
    )
    assert await state(client) == QueueState("quota; it is next in queue team")


async def test_missing_kueue_leaves_the_state_unknown() -> None:
    assert await place_of(Client({}), queued()) == ""
    assert await state(Client({})) == UNKNOWN
