"""The operator's own metrics."""

import itertools
import re
from dataclasses import replace

from ddp_operator.api.status import CheckpointRecord, DDPJobStatus, Failure
from ddp_operator.engine.engine import Engine
from ddp_operator.engine.metrics import Metrics
from ddp_operator.engine.metrics.totals import Totals
from ddp_operator.job.failure.budget import after_progress, count
from ddp_operator.job.status.goodput import is_down
from ddp_operator.ports import Key

from tests.unit.engine.fakes import SETTINGS, FakeCluster
from tests.unit.engine.test_reconciler import CRASHED, job
from tests.unit.job.builders import NOW, edited, ended, fresh_job, later, ready, stored_job
from tests.unit.job.status.test_goodput import look, trained
from tests.unit.job.status.test_training_count import counted, restarted, said
from tests.waiting import eventually

_SAMPLE = re.compile(
    r'(\w+)(\{\w+="(?:[^"\\\n]|\\.)*"(?:,\w+="(?:[^"\\\n]|\\.)*")*\})? ([0-9.e+-]+)'
)


def samples(text: str) -> dict[str, float]:
    """Parse the text format strictly: the head of each family comes before its samples."""
    values: dict[str, float] = {}
    family = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family = line.split()[2]
        elif line.startswith("# TYPE "):
            assert line.split()[2] == family
        else:
            sample = _SAMPLE.fullmatch(line)
            assert sample, line
            assert sample[1].removeprefix(family) in ("", "_bucket", "_sum", "_count")
            assert sample[1] + (sample[2] or "") not in values
            values[sample[1] + (sample[2] or "")] = float(sample[3])
    assert text.endswith("\n")
    return values


async def test_jobs_restarts_and_failures_are_counted() -> None:
    cluster = FakeCluster()
    engine = Engine(cluster, settings=SETTINGS)
    cluster.tell = engine.enqueue
    engine.start()
    engine.job_changed(cluster.store_job(job()))
    await eventually(lambda: len(cluster.pods) == 2)
    cluster.set_pod_status("train-0-1", CRASHED)
    engine.enqueue(Key("default", "train"))
    await eventually(lambda: {key.name for key in cluster.pods} == {"train-1-0", "train-1-1"})
    await engine.stop()
    values = samples(engine.metrics_text(leading=True))
    assert values['ddp_operator_jobs{phase="Restarting"}'] == 1
    assert values['ddp_operator_jobs{phase="Running"}'] == 0
    assert values['ddp_operator_restarts_total{class="Application"}'] == 1
    assert values['ddp_operator_failures_total{class="Application",reason="Error"}'] == 1
    assert values["ddp_operator_leader"] == 1
    assert values["ddp_operator_queue_length"] == 0
    count = values["ddp_operator_reconcile_duration_seconds_count"]
    assert count >= 2
    assert values['ddp_operator_reconcile_duration_seconds_bucket{le="+Inf"}'] == count


def test_restarts_without_progress_are_counted_separately() -> None:
    metrics, status = Metrics(), DDPJobStatus()
    for attempt, step in enumerate((10, 10, 10, 20, 20)):
        reached = status.model_copy(update={"checkpoint": CheckpointRecord(step=step)})
        failure = Failure(
            time=NOW,
            attempt=attempt,
            index=0,
            pod=f"train-{attempt}-0",
            reason="Error",
            class_="Application",
            charged=True,
        )
        after = count(after_progress(reached), failure).model_copy(
            update={"failures": [failure], "attempt": attempt + 1}
        )
        metrics.recorded(before=status, after=after)
        status = after
    values = samples(metrics.text(Totals(), queued=0, leading=True))
    assert values['ddp_operator_restarts_total{class="Application"}'] == 5
    assert values['ddp_operator_restarts_without_progress_total{class="Application"}'] == 3


def recoveries(*statuses: DDPJobStatus) -> tuple[float, float]:
    """Return the number and the seconds of recoveries in a series of stored statuses."""
    metrics = Metrics()
    for before, after in itertools.pairwise(statuses):
        metrics.recorded(before=before, after=after)
    values = samples(metrics.text(Totals(), queued=0, leading=True))
    name = "ddp_operator_recovery_duration_seconds"
    assert values[f'{name}_bucket{{le="+Inf"}}'] == values[f"{name}_count"]
    return values[f"{name}_count"], values[f"{name}_sum"]


def test_recovery_ends_with_a_completed_step() -> None:
    ready_again, pods = restarted()
    went_on = look(
        ready_again, pods, 131, said(103, 131, attempt=1, **counted(80, 125, (101, 129)))
    )
    went_further = look(went_on, pods, 151, said(110, 151, attempt=1))
    statuses = [job.status for job in (ready_again, went_on, went_further)]
    assert recoveries(*statuses) == (1, 19)


def test_recovery_is_timed_from_the_failure_that_no_rule_ignores() -> None:
    job, pods = restarted()
    ignored = job.status.failures[-1].updated(time=later(125), action="Ignore")
    job = replace(job, status=job.status.updated(failures=(*job.status.failures, ignored)))
    went_on = look(job, pods, 131, said(103, 131, attempt=1, **counted(80, 125, (101, 129))))
    assert recoveries(job.status, went_on.status) == (1, 19)


def test_recovery_without_reports_ends_when_pods_are_ready() -> None:
    running, pods = trained()
    fails = look(running, [pods[0], ended(running, 1, code=1, at=110)], 112)
    pods = [ready(fails, index) for index in range(2)]
    went_on = look(fails, pods, 120)
    over = look(went_on, [ended(went_on, index, code=0) for index in range(2)], 160)
    assert fails.status.phase == "Restarting"
    statuses = [job.status for job in (running, fails, went_on, over)]
    assert recoveries(*statuses) == (1, 8)


def test_start_and_suspended_recovery_are_not_recoveries() -> None:
    running, _ = trained()
    assert recoveries(fresh_job().status, running.status) == (0, 0)
    ready_again, _ = restarted()
    suspended = look(edited(ready_again, suspend=True), [], 130)
    assert is_down(ready_again.status)
    assert suspended.status.phase == "Suspended"
    assert recoveries(ready_again.status, suspended.status) == (0, 0)


def test_counters_begin_with_zero() -> None:
    values = samples(Metrics().text(Totals(), queued=0, leading=True))
    classes = {name for name in values if name.startswith("ddp_operator_restarts_total{")}
    assert len(classes) == 4
    assert values['ddp_operator_restarts_total{class="Disruption"}'] == 0
    assert values['ddp_operator_restarts_without_progress_total{class="Application"}'] == 0
    for name in ("Application", "Infrastructure"):
        assert values[f'ddp_operator_failures_total{{class="{name}",reason="NoProgress"}}'] == 0


def test_jobs_of_a_newer_operator_do_not_count_as_failed() -> None:
    engine = Engine(FakeCluster(), settings=SETTINGS)
    engine.job_changed(stored_job(name="newer", novelty=1))
    engine.job_changed(stored_job(name="wrong", replicas=0))
    engine.job_changed(stored_job(name="good"))
    values = samples(engine.metrics_text(leading=True))
    assert values["ddp_operator_newer_jobs"] == 1
    phases = {
        name: value for name, value in values.items() if name.startswith("ddp_operator_jobs{")
    }
    assert sum(phases.values()) == 2
    assert phases['ddp_operator_jobs{phase="Failed"}'] == 1
    assert phases['ddp_operator_jobs{phase="Pending"}'] == 1


def test_text_has_histogram_totals_and_errors() -> None:
    metrics = Metrics()
    metrics.api_errors = {"503": 2, "none": 1}
    for _ in range(3):
        with metrics.reconciling():
            pass
    totals = Totals({'odd "phase"\n': 1}, oldest_step=NOW)
    values = samples(metrics.text(totals, queued=2, leading=False))
    buckets = [
        value for name, value in values.items() if "reconcile_duration_seconds_bucket" in name
    ]
    assert buckets == sorted(buckets)
    assert buckets[-1] == 3
    assert values["ddp_operator_leader"] == 0
    assert values[r'ddp_operator_jobs{phase="odd \"phase\"\n"}'] == 1
    assert values["ddp_operator_oldest_step_timestamp_seconds"] == NOW.timestamp()
    assert "ddp_operator_oldest_checkpoint_timestamp_seconds" not in values
    assert values['ddp_operator_api_errors_total{code="503"}'] == 2
    assert values['ddp_operator_api_errors_total{code="none"}'] == 1
