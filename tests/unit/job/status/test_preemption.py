"""Tests of the priority boost: the cost of a preemption to a queued job."""

from datetime import datetime
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import CheckpointRecord, Failure
from ddp_operator.api.status.world import World
from ddp_operator.job.status.preemption import EVICTED, boost_of, boosts_of, priority_boost

from tests.good_manifests import container, template
from tests.unit.job.builders import edited, later, running_job, with_status

HOUR = 3600.0


def running(**spec: Any) -> DDPJob:
    """Return a job of two pods that runs since NOW + 10 s."""
    job, _ = running_job(**spec)
    return job


def evicted(at: datetime, *, reason: str = EVICTED) -> Failure:
    """Return the record of an eviction of pod 0."""
    return Failure(
        time=at, attempt=0, index=0, pod="digits-0-0", reason=reason, class_="Disruption"
    )


@pytest.mark.parametrize(
    ("gpu_hours", "boost"),
    [(0, 0), (0.24, 0), (0.25, 1), (0.9, 1), (1, 2), (4, 3), (16, 4), (64, 5), (1e6, 5)],
)
def test_boost_grows_with_unsaved_work(gpu_hours: float, boost: int) -> None:
    assert priority_boost(gpu_hours * HOUR, evictions=0, most=5) == boost


def test_boost_grows_with_evictions_up_to_its_limit() -> None:
    assert [priority_boost(0, evictions=n, most=3) for n in range(6)] == [0, 1, 2, 3, 3, 3]
    assert priority_boost(1e9, evictions=9, most=0) == 0


@pytest.mark.parametrize(
    ("saved_at", "now", "boost"),
    [
        (None, 0, 0),
        (None, 10, 0),
        (None, 4 * HOUR, 3),
        (3.8 * HOUR, 4 * HOUR, 1),
        (4 * HOUR, 4 * HOUR, 0),
        (-9 * HOUR, 60, 0),
        (9 * HOUR, HOUR, 0),
    ],
    ids=["early", "new", "unsaved", "recent", "now", "before the start", "in the future"],
)
def test_unsaved_work_counts_from_the_last_checkpoint(
    saved_at: float | None, now: float, boost: int
) -> None:
    job = running()
    if saved_at is not None:
        job = with_status(job, checkpoint=CheckpointRecord(step=5, time=later(saved_at)))
    assert boost_of(job, later(now), most=10) == boost


@pytest.mark.parametrize("phase", ["Pending", "Starting", "Restarting", "Suspended", "Succeeded"])
def test_job_that_does_not_run_has_no_boost(phase: str) -> None:
    job = with_status(running(), phase=phase, failures=(evicted(later(5)),))
    assert boost_of(job, later(9 * HOUR), most=10) == 0


def test_only_evictions_of_the_last_day_count() -> None:
    old, new = evicted(later(-25 * HOUR)), evicted(later(-2 * HOUR))
    failures = (old, new, evicted(later(-HOUR), reason="WorkloadEvictedDueToPreempted"))
    others = (evicted(later(-60), reason="Preempted"),)
    job = with_status(running(), failures=(*failures, *others))
    assert boost_of(job, later(30), most=10) == 2


@pytest.mark.parametrize(
    ("spec", "boost"),
    [
        ({}, 2),
        ({"accelerator": {"type": "nvidia-l4", "count": 8}}, 4),
        ({"template": template(container(resources={"limits": {"nvidia.com/gpu": "8"}}))}, 4),
        ({"template": template(container(resources={"limits": {"nvidia.com/gpu": "0"}}))}, 2),
        ({"replicas": 32}, 4),
    ],
)
def test_boost_grows_with_the_number_of_gpus(spec: dict[str, Any], boost: int) -> None:
    """The work is one hour of 2, 16 or 32 GPUs; a pod without GPUs counts as one."""
    assert boost_of(running(**spec), later(10 + HOUR), most=10) == boost


def test_gpus_of_overrides_count() -> None:
    override = {"indexes": ["1-15"], "accelerator": {"type": "nvidia-l4", "count": 8}}
    job = running(replicas=16, overrides=[override])
    assert boost_of(job, later(10 + 0.54 * HOUR), most=10) == 5
    assert boost_of(job, later(10 + 0.52 * HOUR), most=10) == 4


@pytest.mark.parametrize(
    ("launcher", "boosted"), [("InPlace", ["", "-0-4-0", "-0-2-3"]), ("Pod", [""])]
)
def test_further_elastic_pods_are_boosted_only_in_scope_in_place(
    launcher: str, boosted: list[str]
) -> None:
    elastic = {"minReplicas": 2, "maxReplicas": 6}
    job = edited(running(), elastic=elastic, scheduling={"queueName": "team"})
    assert boosts_of(job, later(10 + HOUR), most=10) == {"digits-7d1c-0": 2}
    world = World(generation=3, members="0-1,4,2")
    job = with_status(job, launcher=launcher, replacements={"2": 3, "5": 1}, world=world)
    found = boosts_of(job, later(10 + HOUR), most=10)
    assert found == {f"digits-7d1c-0{suffix}": 3 for suffix in boosted}
    assert set(boosts_of(with_status(job, phase="Restarting"), later(HOUR), most=10).values()) == {
        0
    }
