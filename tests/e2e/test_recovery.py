"""A pod is lost during training: four jobs at once, by scope and by kind of loss."""

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
    last_words,
    resumed_step,
)
from tests.e2e.kubectl import Kubectl, wait_for
from tests.e2e.losses import STEP_LOG, assert_no_step_is_lost, step_logs, steps_in


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
                f"--trace-samples=/checkpoints/{STEP_LOG}",
                checkpoint={"persistentVolumeClaim": claim},
                restart={"scope": loss.scope},
            )
        )
    jobs = {loss: Job(shared, loss.name) for loss in LOSSES}
    found: dict[str, Bereft] = {}

    def lose_pods() -> bool:
        for loss, job in jobs.items():
            # Each as soon as it trains: it does not wait for the others.
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
def test_a_lost_pod_is_replaced_by_scope(loss: Loss, bereft: dict[str, Bereft]) -> None:
    job, uids_before = bereft[loss.name].job, bereft[loss.name].uids_before
    status = job.wait_until("Succeeded")

    # Only what the training itself did is charged against maxRestarts.
    assert (status.restarts, status.disruptions) == ((1, 0) if loss.killed else (0, 1))
    (failure,) = status.failures
    assert (failure.pod, failure.index) == (loss.pod, loss.index)
    assert failure.signal == (9 if loss.killed else None)
    assert failure.disruption is not loss.killed

    pods = job.ended_pods()
    if loss.scope == "Gang":
        assert status.attempt == 1
        succeeded = {f"{loss.name}-1-0", f"{loss.name}-1-1"}
    else:
        assert status.attempt == 0
        succeeded = {f"{loss.pod}-r1", loss.survivor}
        survivor = pods[loss.survivor]
        assert survivor["metadata"]["uid"] == uids_before[loss.survivor]
        assert survivor["status"]["containerStatuses"][0]["restartCount"] == 0
        assert pods[f"{loss.pod}-r1"]["spec"]["hostname"] == loss.pod, "the identity is the same"
    assert {
        name for name, pod in pods.items() if pod["status"]["phase"] == "Succeeded"
    } == succeeded

    restarts = [event for event in job.events() if event["reason"] == "Restarting"]
    assert len(restarts) == 1
    assert loss.pod in restarts[0]["message"]


@pytest.mark.parametrize("name", ["gang-killed", "gang-deleted"])
def test_gang_resumes_from_the_checkpoint(name: str, bereft: dict[str, Bereft]) -> None:
    job = bereft[name].job
    job.wait_until("Succeeded")

    log = job.log_with(f"{name}-1-0", "resuming from checkpoint")
    assert resumed_step(log) >= 10


@pytest.mark.parametrize(
    "loss", [one for one in LOSSES if one.scope == "Pod"], ids=lambda loss: loss.name
)
def test_survivors_lose_no_step(
    loss: Loss, bereft: dict[str, Bereft], environment: Environment
) -> None:
    job = bereft[loss.name].job
    status = job.wait_until("Succeeded")

    survivor = job.log_with(loss.survivor, "the group broke at step")
    broken = survivor.count("the group broke at step")
    for pod in (loss.survivor, f"{loss.pod}-r1"):
        assert "resuming from checkpoint" not in job.log(pod)
    steps = [steps_in(log) for log in step_logs(environment, job.kubectl, loss.name, 2)]
    assert_no_step_is_lost(steps, total=last_words(status)["totalSteps"])
    # The survivor itself begins only the step again that was under way.
    stayed = steps[1 - loss.index]
    assert stayed == sorted(stayed)
    for rank, begun in enumerate(steps):
        assert len(begun) - len(set(begun)) <= broken + (rank == loss.index), begun
