"""Pods that wait without a rank, and take the place of one that is lost."""

from __future__ import annotations

from typing import Any

from tests.e2e.environment import Environment
from tests.e2e.jobs import (
    UNTIL_TOLD,
    Job,
    force_delete,
    is_training,
    last_words,
    own_digits_job,
    tell_to_end,
)
from tests.e2e.kubectl import Kubectl, wait_for
from tests.e2e.losses import STEP_LOG, assert_no_step_is_lost, returns, step_logs, steps_in
from tests.e2e.test_any_image import launched
from tests.e2e.test_in_place import SCRIPT, begun, end


def whole_with(job: Job, spares: int, *, generation: int) -> None:
    """Wait until all its pods are ready, and so many spares."""

    def ready() -> bool:
        status = job.status()
        known = status.world.generation if status.world else 0
        return (status.ready, known) == (f"2/2 +{spares}", generation)

    wait_for(ready, what=f"{job.name} to be whole, with its spare", describe=job.status)


def test_training_that_loses_rank_0_and_a_worker_loses_no_step(
    environment: Environment, shared: Kubectl
) -> None:
    disturbed, undisturbed = "spares", "spares-undisturbed"
    for name in (disturbed, undisturbed):
        spec: dict[str, Any] = {"restart": {"scope": "Auto"}, "spares": int(name == disturbed)}
        # A new spare must be ready before the training ends.
        pace = (UNTIL_TOLD,) if name == disturbed else ()
        shared.apply(
            own_digits_job(
                name,
                "single",
                *("--epochs=25", "--checkpoint-every-steps=10", "--log-every-steps=10"),
                *pace,
                f"--trace-samples=/checkpoints/{STEP_LOG}",
                checkpoint={"persistentVolumeClaim": environment.make_claim(shared, name)},
                **spec,
            )
        )
    job, twin = Job(shared, disturbed), Job(shared, undisturbed)
    whole_with(job, 1, generation=0)
    wait_for(lambda: is_training(job), what="training", describe=job.status)
    job.wait_until_launcher_answers("Pod")
    assert "waiting for an assignment" in job.log(f"{disturbed}-0-2")
    before = job.uids()

    leader, worker = f"{disturbed}-0-2", f"{disturbed}-0-0-r1"
    force_delete(job, f"{disturbed}-0-0")  # rank 0's
    job.log_with(leader, "continuing from memory at step")
    # While its launcher does not listen yet, the next pod that is lost is replaced instead.
    job.log_with(worker, "waiting for an assignment")
    whole_with(job, 1, generation=1)
    force_delete(job, f"{disturbed}-0-1")
    job.log_with(worker, "continuing from memory at step")
    tell_to_end(job, leader)
    status = job.wait_until("Succeeded")

    assert (status.attempt, status.restarts, status.disruptions) == (0, 0, 2)
    assert [failure.index for failure in status.failures] == [0, 1]
    assert status.world is not None
    assert (status.world.generation, status.world.members) == (2, "2,0")
    assert job.uids()[f"{disturbed}-0-2"] == before[f"{disturbed}-0-2"]
    for pod in (leader, worker):
        assert "resuming from checkpoint" not in job.log_with(pod, "continuing from memory at step")
    groups = job.log(leader).count("group of 2 ranks formed")
    steps = [steps_in(log) for log in step_logs(environment, shared, disturbed, 2)]
    assert_no_step_is_lost(steps, total=last_words(status)["totalSteps"])
    for each in steps:
        # A group that the launcher ended did not break, but its step is begun again as well.
        assert returns(each) <= groups, each

    ends = [last_words(known) for known in (status, twin.wait_until("Succeeded"))]
    for what in ("loss", "accuracy"):
        assert ends[0][what] == ends[1][what]


def test_plain_script_restarts_with_the_spare_in_place_of_the_lost_pod(shared: Kubectl) -> None:
    name = "spares-in-place"
    manifest = launched(name, ["python3", "-c", SCRIPT])
    manifest["spec"] |= {"restart": {"scope": "InPlace"}, "spares": 1}
    shared.apply(manifest)
    job = Job(shared, name)
    first, second, spare = (f"{name}-0-{slot}" for slot in range(3))
    begun(job, 0, first, second)
    whole_with(job, 1, generation=0)
    job.wait_until_launcher_answers()
    assert "rank" not in job.log(spare), "it has none"

    force_delete(job, first)
    begun(job, 1, spare, second)
    assert not any("of generation 0" in line for line in job.log(spare).splitlines())
    for pod in (spare, second):
        end(job, pod, 1)
    status = job.wait_until("Succeeded")
    assert (status.attempt, status.restarts, status.disruptions) == (0, 0, 1)

    def gone() -> bool:
        return {spare, second} == set(job.uids())

    wait_for(gone, what="the end of the spare that came after", describe=job.uids)
