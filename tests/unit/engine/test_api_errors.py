"""Persistent errors of the API server are in the job's status until they end."""

from datetime import timedelta
from typing import Any

import pytest
from ddp_operator.ports import (
    ClusterError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)

from tests.unit.engine.test_reconciler import CRASHED, KEY, READY, World, job

WEBHOOK = (
    'Internal error occurred: failed calling webhook "mutate.example.com": failed to call webhook: '
    'Post "https://policy.example.svc:443/mutate": connect: connection refused'
)
FAIL = "writes to the API server fail: "
ERRORS = (
    UnavailableError(WEBHOOK, status=500),
    UnavailableError("too many requests, please try again later", status=429),
    UnavailableError("POST /api/v1/namespaces/default/pods: no answer in 30 s"),
    NotFoundError('namespaces "default" not found', status=404),
    ClusterError("the server does not allow this method on the requested resource", status=405),
)
CONTENDED_QUOTA = ConflictError(
    'Operation cannot be fulfilled on resourcequotas "compute": the object has been modified; '
    "please apply your changes to the latest version and try again",
    status=409,
)


def shown(world: World) -> tuple[str, str]:
    """Return reason and message of the condition Running; empty if it was never set."""
    stored = world.cluster.jobs[KEY].get("status") or {}
    conditions = {c["type"]: c for c in stored.get("conditions", ())}
    running = conditions.get("Running", {})
    return running.get("reason", ""), running.get("message", "")


def warnings(world: World) -> list[tuple[str, str]]:
    """Return reason and message of the warning Events."""
    return [(event.reason, event.message) for event in world.cluster.events if event.warning]


async def fail_for(world: World, seconds: int, error: ClusterError) -> None:
    """Reconcile again and again, like the queue."""
    for wait in (0, *[5] * (seconds // 5)):
        world.now += timedelta(seconds=wait)
        await world.reconcile_fails(type(error))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("create_pod", ERRORS[0]),
        ("create_pod", CONTENDED_QUOTA),
        ("create_service", ERRORS[1]),
        ("create_service", ERRORS[2]),
        ("apply NetworkPolicy", ERRORS[3]),
        ("apply PodGroup", ERRORS[4]),
    ],
)
async def test_error_that_blocks_pods_is_in_the_status_until_it_ends(
    world: World, call: str, error: ClusterError
) -> None:
    world.apply(job(isolation="Job", scheduling={"gang": "coscheduling"}))
    world.cluster.refuse[call] = error
    await fail_for(world, 5, error)
    assert (shown(world)[0], warnings(world)) == ("", []), "short errors are not shown"
    await fail_for(world, 15, error)
    assert shown(world) == ("APIServerError", FAIL + error.message)
    assert world.status["message"] == FAIL + error.message
    assert warnings(world) == [("APIServerError", FAIL + error.message)]
    world.cluster.refuse.clear()
    await world.reconcile_until_quiet()
    assert shown(world)[0] == "PodsStarting"
    assert len(world.cluster.pods) == 2


async def test_running_job_shows_the_error_and_continues(world: World) -> None:
    await world.start()
    world.make_pods_ready()
    await world.reconcile()
    stored = world.cluster.jobs[KEY]
    stored["spec"]["isolation"] = "Job"
    world.apply(stored)
    world.cluster.refuse["apply NetworkPolicy"] = ERRORS[0]
    await fail_for(world, 15, ERRORS[0])
    assert (world.status["phase"], shown(world)) == ("Running", ("APIServerError", FAIL + WEBHOOK))
    world.cluster.refuse.clear()
    await world.reconcile_until_quiet()
    assert (world.status["phase"], shown(world)[0]) == ("Running", "PodsReady")


@pytest.mark.parametrize("call", ["delete_pod", "patch_pod"])
async def test_error_that_blocks_old_pods_is_in_the_status(world: World, call: str) -> None:
    await world.start(restart={"scope": "Pod"})
    world.cluster.set_pod_status("train-0-0", READY)
    crashed: dict[str, Any] = {**CRASHED, "phase": "Running"}
    world.cluster.set_pod_status("train-0-1", crashed)
    world.cluster.refuse[call] = ERRORS[0]
    await fail_for(world, 15, ERRORS[0])
    assert shown(world) == ("APIServerError", FAIL + WEBHOOK)
    world.cluster.refuse.clear()
    await world.reconcile_until_quiet()
    assert shown(world)[0] != "APIServerError"
    assert world.status["restarts"] == 1


async def test_suspended_job_shows_errors_until_its_pods_are_deleted(world: World) -> None:
    await world.start()
    stored = world.cluster.jobs[KEY]
    stored["spec"]["suspend"] = True
    world.apply(stored)
    world.cluster.refuse["delete_pod"] = ERRORS[0]
    await fail_for(world, 15, ERRORS[0])
    assert (world.status["phase"], shown(world)) == (
        "Suspended",
        ("APIServerError", FAIL + WEBHOOK),
    )
    world.cluster.refuse.clear()
    await world.reconcile_until_quiet()
    assert (world.status["phase"], shown(world)[0]) == ("Suspended", "Suspended")
    assert not world.cluster.pods


async def test_failed_cleanup_of_an_ended_job_makes_one_event(world: World) -> None:
    await world.start(cleanPodPolicy="All", restart={"maxRestarts": 0})
    world.cluster.set_pod_status("train-0-1", CRASHED)
    world.cluster.refuse["delete_pod"] = ERRORS[0]
    await fail_for(world, 60, ERRORS[0])
    assert world.status["reason"] == "MaxRestartsExceeded"
    assert warnings(world)[1:] == [("APIServerError", FAIL + WEBHOOK)]


@pytest.mark.parametrize(
    "error",
    [
        ERRORS[0],
        ForbiddenError("ddpjobs/status is forbidden: you cannot patch it", status=403),
        InvalidError("an admission policy denied the request", status=422),
    ],
    ids=lambda error: f"{error.status}",
)
async def test_status_that_cannot_be_written_makes_one_event(
    world: World, error: ClusterError
) -> None:
    world.apply(job())
    world.cluster.refuse["patch_status"] = error
    await fail_for(world, 60, error)
    assert warnings(world) == [("APIServerError", FAIL + error.message)]
    world.cluster.refuse.clear()
    await world.reconcile_until_quiet()
    assert shown(world)[0] == "PodsStarting"
    world.cluster.refuse["patch_status"] = error
    world.cluster.set_pod_status("train-0-0", READY)
    world.now += timedelta(hours=1)
    await fail_for(world, 20, error)
    assert len(warnings(world)) == 2, "a new error makes another Event"


async def test_long_retry_after_is_in_the_status_at_once(world: World) -> None:
    world.apply(job())
    error = UnavailableError("come back later", status=429, retry_after_seconds=3600)
    world.cluster.refuse["create_pod"] = error
    await fail_for(world, 0, error)
    assert shown(world) == ("APIServerError", FAIL + "come back later")


async def test_long_refusal_keeps_its_own_reason(world: World) -> None:
    world.apply(job())
    error = ForbiddenError("exceeded quota: three-pods", status=403)
    world.cluster.refuse["create_pod"] = error
    await fail_for(world, 120, error)
    assert shown(world)[0] == "PodsForbidden"
    assert [reason for reason, _ in warnings(world)] == ["PodsForbidden"]
