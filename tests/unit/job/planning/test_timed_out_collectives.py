"""Tests of timed-out collectives: traces explain them before the ranks restart."""

import json
from dataclasses import replace

from ddp_operator.api.job import DDPJob
from ddp_operator.hang.result import NOTHING_KNOWN, Hang
from ddp_operator.job.membership.launchers import LauncherStates
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods.state import PodState
from ddp_protocol.world import PodFailure

from tests.unit.job.builders import later, running_job

ENDED = 100
SENTENCE = "rank 1 did not enter all_reduce 4 of the default group; it is at data.py:7 in load"


def timed_out(
    *, dumps: bool = True, text: str = "Watchdog caught collective operation timeout"
) -> tuple[DDPJob, list[PodState], LauncherStates]:
    job, pods = running_job(restart={"scope": "InPlace"})
    pods = [replace(pod, address=f"10.0.0.{pod.key.name[-1]}:1", started=later(1)) for pod in pods]
    error = f"rank 0 died of SIGABRT\n{text}"
    report = {"error": error, "rank": 0, "exitCode": 134, "printed": True, "dumps": dumps}
    failure = PodFailure(
        pod=pods[0].key.name,
        generation=0,
        exit_code=134,
        message=json.dumps(report),
        time=later(ENDED).isoformat(),
    )
    return job, pods, LauncherStates(failures=(failure,), scope="InPlace")


def test_traces_are_requested_before_the_restart() -> None:
    job, pods, launchers = timed_out()
    planned = plan(job, pods, later(ENDED + 4), launchers=launchers, hang=None)
    assert not planned.decided
    assert planned.ask_traces == tuple((i, pod.address) for i, pod in enumerate(pods))
    hang = Hang((1,), SENTENCE, "script")
    planned = plan(job, pods, later(ENDED + 5), launchers=launchers, hang=hang)
    [failure] = planned.status.failures
    assert failure.message == f"collective timed out; {SENTENCE}"
    assert (failure.reason, failure.rank, failure.pod) == ("NoProgress", 1, pods[1].key.name)
    assert (failure.exit_code, failure.class_, failure.charged) == (134, "Application", True)
    assert failure.action == "RestartInPlace"


def test_wait_for_traces_ends() -> None:
    job, pods, launchers = timed_out()
    for seconds, hang in ((61, None), (5, NOTHING_KNOWN)):
        planned = plan(job, pods, later(ENDED + seconds), launchers=launchers, hang=hang)
        [failure] = planned.status.failures
        assert (failure.reason, failure.pod) == ("Error", pods[0].key.name)


def test_other_failures_restart_without_traces() -> None:
    for job, pods, launchers in (timed_out(dumps=False), timed_out(text="CUDA error: unspecified")):
        assert plan(job, pods, later(ENDED + 4), launchers=launchers, hang=None).decided
    job, pods, launchers = timed_out()
    silent = [pods[0], replace(pods[1], ready=False)]
    assert plan(job, silent, later(ENDED + 4), launchers=launchers, hang=None).decided
