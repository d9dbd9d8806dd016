"""Groups that change their size while they train, and scripts that restart with another size."""

from __future__ import annotations

import json
from typing import Any

from ddp_operator.job.membership.world import read_slots

from tests.e2e.environment import Environment
from tests.e2e.jobs import UNTIL_TOLD, Job, doubles_job, force_delete, last_words, tell_to_end
from tests.e2e.kubectl import Kubectl, wait_for
from tests.e2e.losses import (
    STEP_LOG,
    assert_no_step_is_lost,
    samples_of_steps,
    step_logs,
    steps_in,
)
from tests.e2e.test_any_image import launched
from tests.e2e.test_in_place import SCRIPT, begun, end

AT_ONCE = {"minReplicas": 1, "shrinkAfterSeconds": 0, "growAfterSeconds": 1}
"""The group changes at once, so that tests need not wait."""
PATIENT = AT_ONCE | {"shrinkAfterSeconds": 600}
"""Until all pods are ready for the first time, also on a slow machine."""


def change_at_once(job: Job) -> None:
    patch = json.dumps({"spec": {"elastic": AT_ONCE}})
    job.kubectl.run("patch", "ddpjob", job.name, "--type=merge", f"--patch={patch}")


def has_size(job: Job, size: int, *, after: int) -> int:
    """Wait for a group of so many pods, all of them at work, of a later generation than that; its
    generation.
    """

    def whole() -> int | None:
        status = job.status()
        assert not status.finished, status.message
        world = status.world
        if world is None or len(read_slots(world.members)) != size or world.generation <= after:
            return None
        at_work = status.is_true("Running") and status.ready_replicas == size
        return world.generation if at_work else None

    return wait_for(whole, what=f"{job.name} to have {size} pods", describe=job.status)


def test_training_that_shrinks_and_grows_loses_no_step(
    environment: Environment, shared: Kubectl
) -> None:
    changing, fixed = "elastic", "elastic-undisturbed"
    for name in (changing, fixed):
        spec: dict[str, Any] = {"elastic": PATIENT} if name == changing else {}
        pace = (UNTIL_TOLD,) if name == changing else ()
        shared.apply(
            doubles_job(
                name,
                *("--epochs=25", "--checkpoint-every-steps=10", "--log-every-steps=10"),
                *pace,
                f"--trace-samples=/checkpoints/{STEP_LOG}",
                checkpoint={"persistentVolumeClaim": environment.make_claim(shared, name)},
                **spec,
            )
        )
    job, twin = Job(shared, changing), Job(shared, fixed)
    first, second = f"{changing}-0-0", f"{changing}-0-1"
    generation = has_size(job, 2, after=0)
    change_at_once(job)
    job.log_with(first, "saved checkpoint")

    # The pod of rank 0 gets SIGTERM and reports it: the other one continues first.
    shared.run("delete", "pod", first, "--wait=false")
    job.log_with(second, "continuing from memory at step")
    generation = has_size(job, 2, after=generation + 1)
    assert "another pod is stopping" not in job.log(second)
    job.log_with(
        f"{first}-r1", "continuing from memory at step"
    )  # until then only one has the state
    force_delete(job, second)
    generation = has_size(job, 2, after=generation + 1)
    shared.run("scale", "ddpjob", changing, "--replicas=3")
    has_size(job, 3, after=generation)
    tell_to_end(job, f"{first}-r1")
    status = job.wait_until("Succeeded")

    assert (status.attempt, status.restarts, status.disruptions) == (0, 0, 2)
    ends = [last_words(known) for known in (status, twin.wait_until("Succeeded"))]
    for what in ("totalSteps", "loss", "accuracy"):  # the latter two to six decimals
        assert ends[0][what] == ends[1][what]
    logs = step_logs(environment, shared, changing, 3)
    steps = [steps_in(log) for log in logs]
    assert_no_step_is_lost(steps, total=ends[0]["totalSteps"], elastic=True)
    undisturbed = step_logs(environment, shared, fixed, 2)
    assert samples_of_steps(logs) == samples_of_steps(undisturbed), (
        "each step has those that two ranks would have had"
    )
    for pod in job.uids():
        assert "resuming from checkpoint" not in job.log(pod)


def test_plain_script_restarts_with_the_pods_that_exist(shared: Kubectl) -> None:
    name = "elastic-in-place"
    manifest = launched(name, ["python3", "-c", SCRIPT])
    manifest["spec"] |= {"restart": {"scope": "Auto"}, "elastic": PATIENT}
    shared.apply(manifest)
    job = Job(shared, name)
    first, second = f"{name}-0-0", f"{name}-0-1"
    begun(job, 1, first, second)
    job.wait_until_launcher_answers()
    change_at_once(job)
    force_delete(job, first)
    begun(job, 2, second)
    begun(job, 3, second, f"{first}-r1")
    for pod in (second, f"{first}-r1"):
        end(job, pod, 3)
    status = job.wait_until("Succeeded")
    assert (status.attempt, status.restarts, status.disruptions) == (0, 0, 1)
    assert status.world is not None
    assert status.world.members == "1,0"
