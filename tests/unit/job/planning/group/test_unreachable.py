"""Tests of a job whose launchers the operator cannot reach: one of them, or all."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.job.membership.launchers import LauncherStates
from ddp_operator.job.planning import gap_records
from ddp_operator.job.planning.gaps import UNREACHABLE_SECONDS
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods.environment import environment
from ddp_operator.job.pods.state import Identity, PodState
from ddp_protocol.world import LauncherStatus

from tests.unit.job.builders import (
    condition,
    does_nothing,
    ended,
    event_reasons,
    group,
    later,
    listening,
    pod,
    ready,
    running_job,
    stored,
    with_status,
)

ANSWERS = LauncherStates(
    scope="InPlace", leader=LauncherStatus(number=1, generation=0, scope="InPlace")
)
LOST_AT = 60
"""When a pod is lost, in seconds after NOW."""


def trained(scope: str = "InPlace", **spec: Any) -> tuple[DDPJob, list[PodState]]:
    """Return a running job of three pods with launchers that answer."""
    job, pods = running_job(replicas=3, restart={"scope": scope}, **spec)
    pods = [listening(each) for each in pods]
    launchers = replace(ANSWERS, scope="Pod" if scope == "Pod" else "InPlace")
    return stored(job, plan(job, pods, later(20), launchers=launchers)), pods


def unheard(pods: list[PodState], at: float, **what: Any) -> LauncherStates:
    """Return launchers; those of these pods have not answered since `at`."""
    return LauncherStates(unreached_since={each.key.name: later(at) for each in pods}, **what)


def planned_in_turn(
    job: DDPJob, pods: list[PodState], launchers: LauncherStates, *, until: float
) -> tuple[DDPJob, list[Plan]]:
    """Plan once a second, store each plan, and return the job and the plans."""
    plans = []
    for at in range(LOST_AT, int(until) + 1):
        plans.append(plan(job, pods, later(at), launchers=launchers))
        job = stored(job, plans[-1])
    return job, plans


def lose(job: DDPJob, pods: list[PodState], *, started: bool = True) -> tuple[DDPJob, Any]:
    """Drain the last pod, and return the job with its replacement."""
    drained = replace(pods[2], deleting=True, disruption="EvictionByEvictionAPI")
    job = stored(job, plan(job, [*pods[:2], drained], later(LOST_AT), launchers=ANSWERS))
    assert job.status.failures[-1].action == "RestartInPlace"
    new = pod(job, 2, replacement=1, generation=1)
    if started:
        new = listening(ready(job, 2, replacement=1, generation=1))
    return job, [*pods[:2], new]


@pytest.mark.parametrize("scope", ["InPlace", "Auto"])
@pytest.mark.parametrize("started", [False, True])
def test_all_pods_restart_uncharged_if_no_launcher_hears_of_a_restart(
    scope: str, started: bool
) -> None:
    job, pods = lose(*trained(scope), started=started)
    launchers = unheard(pods[:2], LOST_AT + 1)
    due = LOST_AT + 1 + UNREACHABLE_SECONDS
    job, plans = planned_in_turn(job, pods, launchers, until=due - 1)
    assert not any(each.decided or each.delete for each in plans)
    job = stored(job, plan(job, pods, later(due), launchers=launchers))
    last = job.status.failures[-1]
    assert (last.reason, last.action, last.charged) == ("PodsUnreachable", "RestartGang", False)
    assert (job.status.attempt, job.status.restarts, last.node) == (1, 0, "")
    assert job.status.bookkeeping.node_failures_without_progress == 0
    assert not job.status.bookkeeping.nodes
    assert job.status.reason == "PodsUnreachable"
    assert f"port {job.spec.status_port}" in job.status.message


def test_pods_of_an_attempt_made_without_a_way_to_pods_start_by_themselves() -> None:
    job, pods = lose(*trained())
    due = LOST_AT + 1 + UNREACHABLE_SECONDS
    decided = plan(job, pods, later(due), launchers=unheard(pods[:2], LOST_AT + 1))
    job = stored(job, decided)
    variables = [environment(job, Identity(index, 1, 0), token="") for index in range(3)]
    assert not any("DDP_HELD" in each for each in variables)
    new = [listening(ready(job, index, generation=group(job).generation)) for index in range(3)]
    unreached = LauncherStates(silent_since=later(LOST_AT))
    planned = plan(job, new, later(due + 40), launchers=unreached)
    assert planned.assignments == ()
    assert condition(planned, "Running") == ("True", "PodsUnreachable")
    job = stored(job, planned)
    # The next failure needs no word of the operator either.
    lost = [*new[:2], ended(job, 2, code=1, at=due + 50)]
    failed = plan(job, lost, later(due + 60), launchers=unreached)
    assert failed.status.failures[-1].action == "RestartGang"


def test_one_silent_launcher_among_answering_ones_is_replaced() -> None:
    job, pods = lose(*trained())
    launchers = replace(
        unheard(pods[:1], LOST_AT + 1), told={pods[1].key.name: (1, False)}, scope="InPlace"
    )
    job, _ = planned_in_turn(job, pods, launchers, until=LOST_AT + 1 + UNREACHABLE_SECONDS)
    last = job.status.failures[-1]
    assert (last.reason, last.index, last.action) == ("LauncherUnreachable", 0, "RestartInPlace")
    assert job.status.bookkeeping.replacements == {"0": 1, "2": 1}


@pytest.mark.parametrize("confirmed", [0, 1])
def test_pods_that_do_not_confirm_their_start_are_silent(confirmed: int) -> None:
    """One that does not is replaced; if none does, all restart."""
    job, pods = lose(*trained())
    told = {each.key.name: (1, False) for each in pods[:2]}
    told |= {each.key.name: (1, True) for each in pods[:confirmed]}
    silent = pods[confirmed:] if confirmed == 0 else pods[2:]
    launchers = unheard(silent, LOST_AT + 5, told=told)
    job, _ = planned_in_turn(job, pods, launchers, until=LOST_AT + 6)
    found = {node_rank: reason for node_rank, (reason, _) in gap_records.known(job.status).items()}
    assert found == {each.identity.index: "Silent" for each in silent}
    due = LOST_AT + 5 + UNREACHABLE_SECONDS
    job = stored(job, plan(job, pods, later(due), launchers=launchers))
    last = job.status.failures[-1]
    expected = ("PodsUnreachable", 1) if confirmed == 0 else ("LauncherUnreachable", 0)
    assert (last.reason, job.status.attempt) == expected


def grown() -> tuple[DDPJob, list[PodState], datetime]:
    """Return an elastic job that a pod has just joined, and when: nothing is lost."""
    elastic = {"minReplicas": 2, "maxReplicas": 3, "growAfterSeconds": 1}
    job, pods = running_job(replicas=2, restart={"scope": "InPlace"}, elastic=elastic)
    job = stored(job, plan(job, pods, later(15)))
    pods = [listening(replace(each, generation=1)) for each in pods]
    spare = listening(ready(job, 2, generation=1))
    for at in (20, 30, 40):
        launchers = replace(ANSWERS, told={each.key.name: (1, True) for each in [*pods, spare]})
        job = stored(job, plan(job, [*pods, spare], later(at), launchers=launchers))
    assert group(job).members == "0-2"
    return job, [*pods, spare], later(40)


def test_nothing_is_restarted_if_no_launcher_hears_of_a_larger_group() -> None:
    job, pods, began = grown()
    launchers = LauncherStates(unreached_since=dict.fromkeys((p.key.name for p in pods), began))
    reasons = []
    for seconds in (1, 31, 32, 600, 86400):
        planned = plan(job, pods, began + timedelta(seconds=seconds), launchers=launchers)
        assert does_nothing(planned), planned.status.message
        reasons += [reason for reason in event_reasons(planned) if reason == "PodsUnreachable"]
        job = stored(job, planned)
    assert condition(planned, "Running") == ("False", "PodsUnreachable")
    assert reasons == ["PodsUnreachable"]
    assert planned.requeue_at == began + timedelta(seconds=86430), "it is asked again and again"
    told = {each.key.name: (group(job).generation, True) for each in pods}
    answers = plan(
        job, pods, began + timedelta(seconds=86401), launchers=replace(ANSWERS, told=told)
    )
    assert condition(answers, "Running") == ("True", "PodsReady")


def test_unreachable_pods_of_a_running_job_are_a_warning() -> None:
    job, pods = trained()
    silent = LauncherStates(silent_since=later(100))
    early = plan(job, pods, later(100 + UNREACHABLE_SECONDS - 1), launchers=silent)
    assert condition(early, "Running") == ("True", "PodsReady")
    assert early.requeue_at == later(100 + UNREACHABLE_SECONDS)
    warned = plan(job, pods, later(100 + UNREACHABLE_SECONDS), launchers=silent)
    assert condition(warned, "Running") == ("True", "PodsUnreachable")
    assert event_reasons(warned) == ["PodsUnreachable"]
    assert warned.status.phase == "Running"
    job = stored(job, warned)
    again = plan(job, pods, later(200), launchers=silent)
    assert (again.status, again.events) == (job.status, ())
    restarted = plan(job, pods, later(201), launchers=LauncherStates())
    assert condition(restarted, "Running") == ("True", "PodsUnreachable"), "it knows no better yet"
    answers = plan(job, pods, later(202), launchers=ANSWERS)
    assert condition(answers, "Running") == ("True", "PodsReady")
    assert answers.events == ()


@pytest.mark.parametrize(
    ("scope", "action"),
    [("InPlace", "RestartGang"), ("Auto", "RestartGang"), ("Pod", "RestartPod")],
)
def test_failure_without_a_way_to_pods_is_decided_without_launchers(
    scope: str, action: str
) -> None:
    """Processes of scope Pod form their group again by themselves."""
    job, pods = trained(scope)
    lost = [*pods[:2], ended(job, 2, code=1, at=99)]
    planned = plan(job, lost, later(103), launchers=LauncherStates(silent_since=later(70)))
    assert planned.status.failures[-1].action == action
    assert planned.status.restarts == 1


def test_no_spare_and_no_smaller_group_replaces_a_pod_out_of_reach() -> None:
    job, pods = trained(spares=1)
    spare = listening(ready(job, 3))
    lost = [*pods[:2], ended(job, 2, code=137, at=99)]
    for silent_since, members in ((None, "0-1,3"), (later(70), "0-2")):
        launchers = replace(ANSWERS, silent_since=silent_since)
        planned = plan(job, [*lost, spare], later(103), launchers=launchers)
        world = planned.status.world
        assert (world.members if world else "0-2") == members


def test_spares_of_an_image_without_launcher_give_their_nodes_back() -> None:
    """A spare took over before the first start, but no launcher answered. The image may have
    none, so the new attempt has no spare until one answers.
    """
    job, pods = running_job(replicas=2, restart={"scope": "Pod"}, spares=1)
    job = with_status(job, conditions=())
    pods = [replace(pod(job, 0), waiting="ImagePullBackOff"), listening(ready(job, 1))]
    spare = listening(ready(job, 2))
    planned = plan(job, [*pods, spare], later(LOST_AT))
    assert planned.decided
    job = stored(job, planned)
    assert (group(job).members, job.status.bookkeeping.broken_since) == ("2,1", None)

    group_pods, since = [spare, pods[1]], LOST_AT + 1
    silent = unheard(group_pods, since, silent_since=later(since))
    due = since + UNREACHABLE_SECONDS
    assert not plan(job, group_pods, later(due - 1), launchers=silent).decided
    job = stored(job, plan(job, group_pods, later(due), launchers=silent))
    last = job.status.failures[-1]
    assert (last.reason, last.action, last.charged) == ("PodsUnreachable", "RestartGang", False)
    assert "launcher: inject" in last.message

    generation = group(job).generation
    new = [listening(ready(job, index, generation=generation)) for index in range(2)]
    job = stored(job, plan(job, new, later(due + 20), launchers=LauncherStates()))
    begun = plan(job, new, later(due + 21), launchers=LauncherStates())
    assert (begun.create_spares, begun.status.ready) == ((), "2/2 +0")
    heard = LauncherStates(scope="Pod")
    job = stored(job, plan(job, new, later(due + 30), launchers=heard))
    again = plan(job, new, later(due + 31), launchers=heard)
    assert [each.slot for each in again.create_spares] == [2]


def test_pods_that_waited_in_vain_for_the_operator_are_not_charged() -> None:
    """The operator was away for an hour while a group waited for its start. That is a part of the
    failure for which it waited.
    """
    job, pods = lose(*trained())
    over = [ended(job, index, code=75, at=4000) for index in (0, 1)]
    planned = plan(job, [*over, pods[2]], later(4010))
    assert (planned.status.restarts, planned.status.disruptions) == (0, 2)
    assert planned.status.failures[-1].continued
