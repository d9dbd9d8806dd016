"""A pod is lost in the midst of training: four jobs at once, by scope and by the way it is lost."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.e2e.environment import Environment
from tests.e2e.jobs import (
    SHORT_RUN,
    SLOW_STEPS,
    Job,
    digits_job,
    force_delete,
    is_training,
    kill_rank,
    resumed_step,
)
from tests.e2e.kubectl import Kubectl, wait_for


@dataclass(frozen=True)
class Loss:
    """Which pod a job loses, and how."""

    name: str
    scope: str
    index: int
    killed: bool
    """Its process dies by SIGKILL, rather than the pod being deleted by force."""

    @property
    def pod(self) -> str:
        return f"{self.name}-0-{self.index}"

    @property
    def survivor(self) -> str:
        return f"{self.name}-0-{1 - self.index}"


LOSSES = (
    Loss(name="gang-killed", scope="Gang", index=1, killed=True),
    Loss(name="gang-deleted", scope="Gang", index=0, killed=False),
    Loss(name="pod-killed", scope="Pod", index=0, killed=True),
    Loss(name="pod-deleted", scope="Pod", index=1, killed=False),
)


@dataclass(frozen=True)
class Bereft:
    """A job that has just lost a pod."""

    job: Job
    uids_before: dict[str, str]


@pytest.fixture(scope="module")
def bereft(environment: Environment, shared: Kubectl) -> dict[str, Bereft]:
    """Every job has saved a checkpoint, and then lost a pod."""
    for loss in LOSSES:
        claim = environment.make_claim(shared, loss.name)
        shared.apply(
            digits_job(
                loss.name,
                *SHORT_RUN,
                *SLOW_STEPS,
                # The launcher would start a killed process again, and the pod would never fail.
                *(["--max-restarts=0"] if loss.killed else []),
                checkpoint={"persistentVolumeClaim": claim},
                restart={"scope": loss.scope},
            )
        )
    jobs = {loss: Job(shared, loss.name) for loss in LOSSES}
    found: dict[str, Bereft] = {}

    def lose_pods() -> bool:
        for loss, job in jobs.items():
            # Whichever is in its midst first: it will not wait for the others.
            if loss.name not in found and is_training(job):
                found[loss.name] = Bereft(job, job.uids())
                if loss.killed:
                    kill_rank(job, loss.pod)
                else:
                    force_delete(job, loss.pod)
        return len(found) == len(LOSSES)

    wait_for(lose_pods, what="training of all jobs", describe=found.keys)
    return found


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_training_goes_on_from_the_checkpoint(loss: Loss, bereft: dict[str, Bereft]) -> None:
    job, uids_before = bereft[loss.name].job, bereft[loss.name].uids_before
    status = job.wait_until("Succeeded")

    # Only what the training itself did is charged against maxRestarts.
    assert (status.restarts, status.disruptions) == ((1, 0) if loss.killed else (0, 1))
    (failure,) = status.failures
    assert (failure.pod, failure.index) == (loss.pod, loss.index)
    assert failure.signal == (9 if loss.killed else None)
    assert failure.disruption is not loss.killed

    pods = {pod["metadata"]["name"]: pod for pod in job.pods()}
    if loss.scope == "Gang":
        assert status.attempt == 1
        succeeded = {f"{loss.name}-1-0", f"{loss.name}-1-1"}
        rank_0 = f"{loss.name}-1-0"
    else:
        assert status.attempt == 0
        succeeded = {f"{loss.pod}-r1", loss.survivor}
        rank_0 = f"{loss.pod}-r1" if loss.index == 0 else loss.survivor
        survivor = pods[loss.survivor]
        assert survivor["metadata"]["uid"] == uids_before[loss.survivor]
        assert survivor["status"]["containerStatuses"][0]["restartCount"] == 0
        assert pods[f"{loss.pod}-r1"]["spec"]["hostname"] == loss.pod, "the identity is the same"
    assert {
        name for name, pod in pods.items() if pod["status"]["phase"] == "Succeeded"
    } == succeeded
    assert resumed_step(job.log(rank_0)) >= 10, job.log(rank_0)

    restarts = [event for event in job.events() if event["reason"] == "Restarting"]
    assert len(restarts) == 1
    assert loss.pod in restarts[0]["message"]
