"""An elastic job of two to six pods that lends four of them to an urgent job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddp_operator.api.status import DDPJobStatus

from tests.e2e.environment import Environment
from tests.e2e.jobs import UNTIL_TOLD, Job, digits_job, doubles_job, last_words, tell_to_end
from tests.e2e.kubectl import Kubectl, Manifest
from tests.e2e.losses import (
    STEP_LOG,
    assert_each_sample_once,
    assert_no_step_is_lost,
    step_logs,
    steps_in,
)
from tests.e2e.test_elastic import has_size

LENDER = "gang"
_MOST = 6


def lender(environment: Environment, kubectl: Kubectl) -> Manifest:
    """Return a job of two to six pods that trains until `ends_without_a_repeated_step`."""
    elastic: dict[str, Any] = {"minReplicas": 2, "shrinkAfterSeconds": 0, "growAfterSeconds": 1}
    return doubles_job(
        LENDER,
        *("--epochs=80", "--checkpoint-every-steps=1000", UNTIL_TOLD),
        f"--trace-samples=/checkpoints/{STEP_LOG}",
        replicas=_MOST,
        elastic=elastic,
        checkpoint={"persistentVolumeClaim": environment.make_claim(kubectl, LENDER)},
    )


def borrower() -> Manifest:
    """Return a short job of four pods; the caller makes it urgent."""
    return digits_job("urgent", "--epochs=1", replicas=4)


def grows_lends_and_grows_again(
    kubectl: Kubectl, urgent: Manifest, offer: Callable[[int], object]
) -> None:
    """Wait until the lender has two pods, grows to six, trains on with two while the urgent job
    runs, and has six again. `offer`: makes room for this number of pods.
    """
    job = Job(kubectl, LENDER)
    generation = has_size(job, 2, after=0)
    for size in (3, _MOST):
        offer(size)
        generation = has_size(job, size, after=generation)
    kubectl.apply(urgent)
    generation = has_size(job, 2, after=generation)
    status = Job(kubectl, urgent["metadata"]["name"]).wait_until("Succeeded")
    assert (status.restarts, status.disruptions) == (0, 0)
    has_size(job, _MOST, after=generation)


def ends_without_a_repeated_step(environment: Environment, kubectl: Kubectl) -> DDPJobStatus:
    """Tell the lender to end, and assert that it did everything once; its last status."""
    job = Job(kubectl, LENDER)
    tell_to_end(job, f"{LENDER}-0-0")
    status = job.wait_until("Succeeded")
    assert (status.attempt, status.restarts) == (0, 0)
    assert 1 <= status.disruptions <= 4, "pods that are lost together count once"
    logs = step_logs(environment, kubectl, LENDER, _MOST)
    steps = [steps_in(log) for log in logs]
    assert_no_step_is_lost(steps, total=last_words(status)["totalSteps"], elastic=True)
    assert_each_sample_once(logs, shards=_MOST)
    for pod in job.uids():
        assert "resuming from checkpoint" not in job.log(pod)
    return status
