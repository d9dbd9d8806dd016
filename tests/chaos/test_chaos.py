"""Five jobs on a bad day: pods, processes, operator and API server die at random moments.

All jobs finish, none fails, and their statuses account for every restart.
"""

import random
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest

from tests.chaos.accounts import Account, Begun
from tests.chaos.conftest import Victim, explained, wait_until_all_succeed
from tests.chaos.disturbances import Chaos
from tests.chaos.goodput_account import GoodputAccount
from tests.chaos.journal import Journal
from tests.chaos.record import Record, recording
from tests.chaos.schedule import TIMES, schedule
from tests.e2e.environment import OPERATOR_NAMESPACE, Environment, operator_pods
from tests.e2e.jobs import Job, accuracy, doubles_job, last_words
from tests.e2e.kubectl import Kubectl, Manifest, wait_for

pytestmark = [pytest.mark.nightly, pytest.mark.cluster, pytest.mark.timeout(1800)]

RESTARTS_AT_MOST = 100
"""None may fail: how budgets are spent is shown elsewhere."""


@dataclass(frozen=True)
class Shape:
    """A job by the way it recovers."""

    name: str
    scope: str
    replicas: int
    epochs: int
    rank_restarts: int
    """How many processes of a pod its launcher starts again before it gives the pod up."""
    spares: int = 0
    elastic: bool = False


# Epochs such that each trains for three minutes and more when nothing happens to it, and so is
# there until the last disturbance.
JOBS = (
    Shape(name="gang-3", scope="Gang", replicas=3, epochs=24, rank_restarts=3),
    Shape(name="in-place-2", scope="InPlace", replicas=2, epochs=16, rank_restarts=0),
    Shape(name="spares-2", scope="Pod", replicas=2, epochs=16, rank_restarts=0, spares=1),
    Shape(name="elastic-3", scope="Pod", replicas=3, epochs=24, rank_restarts=3, elastic=True),
    Shape(name="pod-1", scope="Pod", replicas=1, epochs=8, rank_restarts=0),
)
SIZES = {"minReplicas": 1, "maxReplicas": 4, "shrinkAfterSeconds": 3, "growAfterSeconds": 5}
STEP_LOG = "steps"
STEP_SECONDS = 0.5
"""They wait more than they compute: twelve pods share two cores."""
FINISH_SECONDS = 900.0
"""Of all jobs, from the last disturbance on; on a machine with nothing else to do one minute."""


def test_all_jobs_come_through_a_bad_day(
    victim: Victim, namespace: Kubectl, journal: Journal
) -> None:
    random_ = random.Random(journal.seed)
    chaos = Chaos(victim.node, namespace, random_, journal)
    jobs = [Job(namespace, shape.name) for shape in JOBS]
    with (
        explained(journal, victim.environment, namespace),
        recording(victim.node.client, namespace.namespace) as record,
    ):
        for shape in JOBS:
            namespace.apply(_manifest(shape, victim.environment.make_claim(namespace, shape.name)))
        for job in jobs:
            job.wait_until("Running")

        for step in schedule(random_):
            time.sleep(step.pause_seconds)
            chaos.disturb(step.kind)

        journal.note("calm from now on")
        wait_until_all_succeed(jobs, within_seconds=FINISH_SECONDS)
        _wait_until_all_pods_have_ended(jobs)
        complaints = [
            text
            for shape in JOBS
            for text in _audit(victim.environment, namespace, shape, journal, record)
        ]
        complaints += _about_ends(namespace)
        complaints += [f"two pods of one rank at once: {double}" for double in record.doubles]
        assert not complaints, "\n".join(complaints)
        assert {deed.kind for deed in journal.deeds} == set(TIMES), "not everything was tried"
        _wait_until_operator_is_well(namespace)


def _manifest(shape: Shape, claim: str) -> Manifest:
    sizes: dict[str, Any] = {"elastic": SIZES} if shape.elastic else {}
    return doubles_job(
        shape.name,
        f"--epochs={shape.epochs}",
        f"--step-delay-seconds={STEP_SECONDS}",
        f"--max-restarts={shape.rank_restarts}",
        "--checkpoint-every-steps=10",
        "--log-every-steps=10",
        f"--trace-samples=/checkpoints/{STEP_LOG}",
        replicas=shape.replicas,
        spares=shape.spares,
        **sizes,
        checkpoint={"persistentVolumeClaim": claim},
        restart={
            "scope": shape.scope,
            "maxRestarts": RESTARTS_AT_MOST,
            # Longer pauses would only make the test longer.
            "backoff": {"initialSeconds": 1, "maxSeconds": 2},
        },
    )


def _wait_until_all_pods_have_ended(jobs: list[Job]) -> None:
    """Launchers tell the operator of their end before the kubelet tells the API server."""

    def left() -> list[str]:
        pods = [pod for job in jobs for pod in job.pods()]
        return [
            pod["metadata"]["name"]
            for pod in pods
            if "deletionTimestamp" in pod["metadata"] or pod["status"].get("phase") == "Running"
        ]

    wait_for(lambda: not left(), what="the end of all pods", describe=left)


def _about_ends(namespace: Kubectl) -> list[str]:
    """Return differences between the ends of jobs of the same world size: all must be equal."""
    found = []
    for replicas in {shape.replicas for shape in JOBS}:
        names = [shape.name for shape in JOBS if shape.replicas == replicas]
        ends = {name: last_words(Job(namespace, name).status()) for name in names}
        if len({(end["step"], end["loss"], end["accuracy"]) for end in ends.values()}) != 1:
            found.append(f"these should have ended alike: {ends}")
    return found


def _steps(
    environment: Environment, namespace: Kubectl, shape: Shape, opened: float
) -> list[list[Begun]]:
    """By rank, the steps that were begun."""
    files = sorted(environment.volume_path(namespace, shape.name).glob(f"{STEP_LOG}.rank*"))
    return [Begun.all_in(file, opened=opened) for file in files]


def _audit(
    environment: Environment,
    namespace: Kubectl,
    shape: Shape,
    journal: Journal,
    record: Record,
) -> list[str]:
    job = Job(namespace, shape.name)
    status = job.status()
    steps = _steps(environment, namespace, shape, journal.opened)
    account = Account(
        name=shape.name,
        scope=shape.scope,
        replicas=shape.replicas,
        status=status,
        pods=job.pods(),
        deeds=journal.deeds,
        record=record,
        elastic=shape.elastic,
        # Only these continue from memory.
        steps=steps if shape.scope == "Pod" and shape.replicas > 1 else (),
    )
    created = namespace.get("ddpjob", shape.name)["metadata"]["creationTimestamp"]
    ended = status.completion_time
    assert ended is not None
    goodput = GoodputAccount(
        name=shape.name,
        created=datetime.fromisoformat(created).timestamp() - journal.opened,
        ended=ended.timestamp() - journal.opened,
        status=status,
        steps=steps,
        deeds=journal.deeds,
    )
    journal.note(
        f"{shape.name}: {status.restarts} restarts, {status.disruptions} disruptions, "
        f"attempt {status.attempt}, replacements {status.bookkeeping.replacements}, "
        f"group {status.world}"
    )
    learned = accuracy(status)
    return [
        *account.complaints(),
        *goodput.complaints(),
        *([] if learned >= 0.9 else [f"{shape.name}: it has learned no more than {learned:.2f}"]),
    ]


def _wait_until_operator_is_well(kubectl: Kubectl) -> None:
    """Both replicas recover, and what they have logged is no crash of their own."""
    operator = kubectl.within(OPERATOR_NAMESPACE)

    def status() -> Any:
        return operator.get("deployment", "ddp-operator")["status"]

    wait_for(lambda: status().get("readyReplicas") == 2, what="two replicas", describe=status)
    for pod in operator_pods(kubectl):
        name = pod["metadata"]["name"]
        for words in (["logs", name], ["logs", name, "--previous"]):
            log = operator.attempt(*words).stdout  # not every one had a predecessor
            assert "Traceback" not in log, log
