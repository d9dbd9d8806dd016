"""Metrics of single jobs."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from ddp_operator.__main__ import main
from ddp_operator.api.job import DDPJob, NewerJobError
from ddp_operator.api.status import (
    CheckpointRecord,
    Condition,
    DDPJobStatus,
    Goodput,
    MemoryCheckpointRecord,
    Phase,
    Progress,
    SlowRank,
    Stopwatch,
)
from ddp_operator.engine.engine import Engine
from ddp_operator.engine.job_cache import Entry
from ddp_operator.engine.metrics import Chosen, choose, text_of
from ddp_operator.ports import Key

from tests.good_manifests import container, gpus, template
from tests.unit.cpu_budget import loops
from tests.unit.engine.fakes import SETTINGS, FakeCluster
from tests.unit.engine.test_metrics import samples
from tests.unit.job.builders import NOW, fresh_job, later, stored_job, with_status

TOLD = Progress(
    step=120,
    total_steps=960,
    loss=0.25,
    samples_per_second=800,
    updated_at=later(90),
    last_step_time=later(88),
)
SAVED = CheckpointRecord(step=100, path="/a/secret/place", time=later(70))
BOOKS = Goodput(starting_seconds=10, lost_seconds=10, steps_lost=7)
WATCH = Stopwatch(accounted_until=later(20))


def of(job: DDPJob, *, at: float = 100) -> dict[str, float]:
    """Return the metrics of a job, without the labels that every sample has."""
    labels = f'job_namespace="{job.namespace}",job_name="{job.name}"'
    metrics: dict[str, float] = {}
    for name, value in samples(text_of([job], now=later(at))).items():
        assert labels in name
        metrics[name.replace(f"{labels},", "").replace(f"{{{labels}}}", "")] = value
    return metrics


def training(**status: Any) -> DDPJob:
    job = fresh_job(template=template(container(resources=gpus(gpu=4))), replicas=2)
    known = {"goodput": BOOKS, "stopwatch": WATCH, **status}
    return with_status(job, phase="Running", ready_replicas=2, **known)


def test_running_job_has_all_metrics() -> None:
    in_memory = MemoryCheckpointRecord(step=115, time=later(80))
    job = training(
        progress=TOLD,
        checkpoint=SAVED,
        memory_checkpoint=in_memory,
        restarts=1,
        disruptions=3,
        attempt=4,
    )
    assert of(job) == {
        'ddpjob_phase{phase="Running"}': 1,
        "ddpjob_created_timestamp_seconds": NOW.timestamp(),
        "ddpjob_step": 120,
        "ddpjob_target_steps": 960,
        "ddpjob_loss": 0.25,
        "ddpjob_samples_per_second": 800,
        "ddpjob_last_step_timestamp_seconds": later(88).timestamp(),
        "ddpjob_checkpoint_step": 100,
        "ddpjob_checkpoint_timestamp_seconds": later(70).timestamp(),
        "ddpjob_memory_checkpoint_step": 115,
        "ddpjob_memory_checkpoint_timestamp_seconds": later(80).timestamp(),
        'ddpjob_restarts{charged="true"}': 1,
        'ddpjob_restarts{charged="false"}': 3,
        "ddpjob_attempt": 4,
        "ddpjob_replicas": 2,
        "ddpjob_replicas_ready": 2,
        "ddpjob_gpus": 8,
        'ddpjob_seconds{kind="pending"}': 0,
        'ddpjob_seconds{kind="starting"}': 10,
        'ddpjob_seconds{kind="training"}': 80,
        'ddpjob_seconds{kind="lost"}': 10,
        'ddpjob_seconds{kind="suspended"}': 0,
        "ddpjob_goodput_ratio": 0.8,
        "ddpjob_lost_steps": 7,
    }


def test_unknown_values_are_left_out() -> None:
    fresh = of(fresh_job())
    assert fresh['ddpjob_phase{phase="Pending"}'] == 1
    assert fresh["ddpjob_gpus"] == 0
    assert not {name for name in fresh if "step" in name or "checkpoint" in name}
    assert not {"ddpjob_loss", "ddpjob_samples_per_second", "ddpjob_goodput_ratio"} & fresh.keys()
    for loss in (float("nan"), float("inf")):
        job = training(progress=TOLD.model_copy(update={"loss": loss}))
        assert "ddpjob_loss" not in of(job)
    pods_differ = {"indexes": ["0"], "nprocPerNode": 2}
    assert "ddpjob_gpus" not in of(fresh_job(overrides=[pods_differ]))


@pytest.mark.parametrize("phase", ["Restarting", "Succeeded"])
def test_rate_and_slow_rank_are_left_out_unless_the_job_trains(phase: Phase) -> None:
    slow = SlowRank(rank=3, ratio=1.75, seconds_per_step=0.5, since=NOW)
    job = training(progress=TOLD, slow_rank=slow)
    rates = {"ddpjob_slow_rank_ratio": 1.75, "ddpjob_samples_per_second": 800}
    assert rates.items() <= of(job).items()
    assert not rates.keys() & of(with_status(job, phase=phase)).keys()
    assert of(with_status(job, phase=phase))["ddpjob_step"] == 120


def test_labels_hold_only_names_and_words_of_the_operator() -> None:
    job = with_status(training(progress=TOLD, checkpoint=SAVED), message="mine", reason="Mine")
    text = text_of([job], now=later(100)).lower()
    assert "secret" not in text
    assert "mine" not in text


def entry(
    name: str,
    *,
    namespace: str = "research",
    phase: Phase = "Running",
    created: float = 0,
    ended: float | None = None,
) -> Entry:
    over = Condition(type="Succeeded", status="True", reason="Done", last_transition_time=NOW)
    status = DDPJobStatus(
        phase=phase,
        conditions=(over,) if phase == "Succeeded" else (),
        completion_time=None if ended is None else later(ended),
    )
    job = replace(
        fresh_job(), name=name, namespace=namespace, created=later(created), status=status
    )
    return Entry("", "", "", job)


def names(chosen: Chosen) -> list[str]:
    return [job.name for job in chosen.jobs]


def chosen(entries: Iterable[Entry], limit: int, now: datetime = NOW) -> Chosen:
    return choose(entries, limit=limit, now=now)


def test_training_jobs_come_first_and_ended_ones_last() -> None:
    jobs = [
        entry("over", phase="Succeeded", ended=0),
        entry("waits", phase="Pending"),
        entry("restarts", phase="Restarting", created=2),
        entry("runs", created=1),
    ]
    assert names(chosen(jobs, 4)) == ["over", "waits", "restarts", "runs"]
    assert names(chosen(jobs, 3)) == ["runs", "restarts", "waits"]
    assert chosen(jobs, 3).left_out == 1
    assert names(chosen(jobs, 2)) == ["runs", "restarts"]


def test_thousands_of_jobs_do_not_displace_another_namespace() -> None:
    flood = [entry(f"flood-{i}", namespace="hostile", created=i) for i in range(3000)]
    late = [entry(f"late-{i}", namespace="victim", created=5000 + i) for i in range(3)]
    values = chosen([*flood, *late], 10)
    assert {"late-0", "late-1", "late-2"} < set(names(values))
    assert len(values.jobs) == 10
    assert values.left_out == 2993


def test_job_with_metrics_keeps_them_when_a_new_job_appears() -> None:
    before = [entry("first"), entry("second", created=1)]
    after = [entry("a-later-one", created=2), *before]
    assert set(names(chosen(after, 2))) == set(names(chosen(before, 2)))


def test_finished_job_is_left_out_after_an_hour() -> None:
    jobs = [entry("over", phase="Succeeded", ended=0), entry("unknown-when", phase="Succeeded")]
    assert names(chosen(jobs, 9, later(3599))) == ["over"]
    assert chosen(jobs, 9, later(3600)) == Chosen([], left_out=0)


def test_invalid_job_does_not_count_as_left_out() -> None:
    assert chosen([Entry("", "", "", NewerJobError("later"))], 1) == Chosen([], left_out=0)


def engine(*, limit: int, jobs: int) -> Engine:
    engine = Engine(FakeCluster(), settings=SETTINGS, metrics_jobs=limit)
    for i in range(jobs):
        engine.job_changed(stored_job(name=f"job-{i}"))
    return engine


def test_only_the_leader_serves_metrics_of_jobs() -> None:
    replica = engine(limit=2, jobs=3)
    values = samples(replica.metrics_text(leading=True))
    assert len([name for name in values if name.startswith("ddpjob_phase")]) == 2
    assert values["ddp_operator_left_out_jobs"] == 1
    standby = samples(replica.metrics_text(leading=False))
    assert not [name for name in standby if name.startswith("ddpjob_")]
    assert standby["ddp_operator_left_out_jobs"] == 0


def test_deleted_job_is_missing_in_the_next_scrape() -> None:
    replica = engine(limit=9, jobs=2)
    assert 'job_name="job-1"' in replica.metrics_text(leading=True)
    replica.job_gone(Key("research", "job-1"))
    assert 'job_name="job-1"' not in replica.metrics_text(leading=True)


def test_scrape_of_the_maximum_of_jobs_takes_little_time() -> None:
    job = training(progress=TOLD, checkpoint=SAVED)
    entries = [
        Entry("", "", "", replace(job, name=f"job-{i}", namespace=f"team-{i % 50}"))
        for i in range(10_000)
    ]

    def scrape() -> str:
        return text_of(choose(entries, limit=1000, now=later(100)).jobs, now=later(100))

    assert scrape().count("\nddpjob_step{") == 1000
    assert len(scrape()) < 2_500_000
    assert loops(scrape) < 2


@pytest.mark.parametrize("number", ["-1", "10001", "many"])
def test_invalid_number_of_jobs_is_refused(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", f"--metrics-jobs={number}"]) == 64
    assert f"invalid number of jobs {number!r}" in capsys.readouterr().err
