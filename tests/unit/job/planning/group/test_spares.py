"""Tests of spares: which lost pod a spare replaces, and when."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.api.values.text import in_ranges
from ddp_operator.job.membership import world
from ddp_operator.job.membership.launchers import NO_LAUNCHERS, LauncherStates
from ddp_operator.job.planning.group import spares
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.environment import environment
from ddp_operator.job.pods.state import Identity, PodState
from ddp_operator.ports import Node

from tests.unit.job.builders import (
    condition,
    ended,
    fresh_job,
    group,
    later,
    listening,
    ready,
    running_job,
    stored,
    with_status,
)
from tests.unit.job.builders import pod as one_pod
from tests.unit.job.planning.group.test_in_place import failure, knowing


def with_spares(
    *, count: int = 1, scope: str = "Pod", **spec: Any
) -> tuple[DDPJob, list[PodState]]:
    """Return a running job of three pods and its ready spares, with all pods."""
    job, pods = running_job(replicas=3, spares=count, restart={"scope": scope}, **spec)
    pods += [ready(job, 3 + number) for number in range(count)]
    pods = [listening(each) for each in pods]
    return stored(job, plan(job, pods, later(20), launchers=listens(scope))), pods


def listens(scope: str) -> LauncherStates:
    """Return launcher states; only launchers in scope `InPlace` are polled."""
    return LauncherStates(scope="InPlace") if scope == "InPlace" else NO_LAUNCHERS


def recorded(job: DDPJob, planned: Plan) -> DDPJob:
    assert planned.decided
    assert (planned.create, planned.create_spares, planned.delete) == ((), (), ())
    assert planned.assignments == (), "the decision is stored first"
    return stored(job, planned)


def names(pods: Sequence[Identity]) -> list[str]:
    return [each.pod_name("digits") for each in pods]


def test_spares_are_created_once_the_group_is_scheduled() -> None:
    job, pods = running_job(replicas=3, spares=2, restart={"scope": "Pod"})
    unplaced = [replace(pods[0], node=""), *pods[1:]]
    assert plan(job, unplaced, later(20)).create_spares == ()
    assert plan(job, pods[:2], later(20)).create_spares == ()
    planned = plan(job, pods, later(20))
    assert names(planned.create_spares) == ["digits-0-3", "digits-0-4"]
    assert planned.status.ready == "3/3 +0"
    variables = environment(job, planned.create_spares[0], token="secret")
    assert variables["DDP_POD"] == "digits-0-3"
    assert {"MASTER_PORT", "LOCAL_WORLD_SIZE", "DDP_GENERATION", "DDP_TOKEN"} <= variables.keys()
    assert not {"RANK", "WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "PET_NNODES"} & variables.keys()
    there = [*pods, *(listening(ready(job, slot)) for slot in (3, 4))]
    planned = plan(job, there, later(21))
    assert planned.create_spares == ()
    assert (planned.status.ready, planned.status.ready_replicas) == ("3/3 +2", 3)


def test_spare_has_its_own_priority_class() -> None:
    template = fresh_job().spec.template
    pod_spec = {**template["spec"], "priorityClassName": "high", "priority": 9}
    job, pods = running_job(
        replicas=3,
        spares=1,
        sparesPriorityClassName="low",
        template={**template, "spec": pod_spec},
    )
    job = replace(job, status=job.status.noting(launcher="InPlace"))
    [spare] = plan(job, pods, later(20)).create_spares
    made = {each: manifests.pod(job, each)["spec"] for each in (pods[0].identity, spare)}
    priorities = [(spec["priorityClassName"], spec.get("priority")) for spec in made.values()]
    assert priorities == [("high", 9), ("low", None)]


@pytest.mark.parametrize("victim", [0, 2])
def test_spare_replaces_a_lost_pod_in_the_write_that_records_it(victim: int) -> None:
    job, pods = with_spares()
    lost = ended(job, victim, code=137, at=59)
    seen = [lost if each.identity.index == victim else each for each in pods]
    planned = plan(job, seen, later(63))
    job = recorded(job, planned)
    found = group(planned)
    assert found.generation == 1
    assert found.members == ("3,1-2" if victim == 0 else "0-1,3")
    assert planned.status.bookkeeping.replacements == {str(victim): 1}
    [event] = planned.events
    assert f"spare digits-0-3 becomes node rank {victim} (" in event.message
    assert condition(planned, "PodsCreated")[0] == "True"
    assert planned.status.next_start_time is None, "there is no backoff"

    planned = plan(job, seen, later(63))
    assert planned.delete == (lost.key,)
    assert planned.create == ()
    assert names(planned.create_spares) == [f"digits-0-{victim}-r1"]
    ranks = {each.pod: each.group.node_rank for each in planned.assignments}
    members = [pods[3 if index == victim else index] for index in range(3)]
    assert ranks == {each.key.name: rank for rank, each in enumerate(members)}
    for assignment in planned.assignments:
        assert assignment.group.broken, "no rank waits for the lost one"
        assert assignment.group.start, "ranks of another generation cannot join"
        leader = 3 if victim == 0 else 0
        assert assignment.group.master_addr == f"digits-0-{leader}.digits"
        assert assignment.group.master_address == f"10.0.0.{leader}"
    assert condition(planned, "Running")[0] == "False"

    others = [each for each in pods if each.identity.index != victim]
    planned = plan(job, others, later(64), launchers=replace(NO_LAUNCHERS, **knowing(others, 1)))
    assert planned.assignments == ()
    assert condition(planned, "Running")[0] == "True"
    assert planned.status.ready == "3/3 +0"


def test_spare_prefers_a_node_of_its_own() -> None:
    job, _ = with_spares()
    assert "affinity" not in manifests.pod(job, Identity(2, 0))["spec"]
    affinity = manifests.pod(job, Identity(3, 0))["spec"]["affinity"]
    [(kind, [preference])] = affinity["podAntiAffinity"].items()
    assert kind.startswith("preferred")
    term = preference["podAffinityTerm"]
    assert term["labelSelector"]["matchLabels"] == {"ddp-operator.io/job-name": "digits"}
    assert term["topologyKey"] == "kubernetes.io/hostname"


def test_spares_replace_pods_repeatedly() -> None:
    job, pods = with_spares()
    by_slot = {each.identity.slot: each for each in pods}
    for round_ in range(1, 6):
        slot = world.members(job)[1]
        now = later(60 + 60 * round_)
        lost = replace(by_slot.pop(slot), phase="Failed", reason="Evicted")
        job = recorded(job, plan(job, [*by_slot.values(), lost], now))
        confirmed = replace(NO_LAUNCHERS, **knowing(list(by_slot.values()), round_))
        planned = plan(job, list(by_slot.values()), now, launchers=confirmed)
        assert condition(planned, "Running")[0] == "True"
        [new] = planned.create_spares
        assert (new.slot, new.replacement) == (slot, (round_ + 1) // 2)
        by_slot[slot] = listening(ready(job, slot, replacement=new.replacement, generation=round_))
        assert world.members(job)[1] == (3 if round_ % 2 else 1)
    assert job.status.attempt == 0
    assert job.status.restarts == 0
    assert job.status.disruptions == 5


def test_losses_beyond_the_spares_are_replaced() -> None:
    job, pods = with_spares()
    seen = [pods[0], *(ended(job, index, code=137, at=59) for index in (1, 2)), pods[3]]
    planned = plan(job, seen, later(63))
    job = recorded(job, planned)
    assert group(planned).members == "0,3,2"
    assert planned.status.bookkeeping.replacing == (2,)
    [event] = planned.events
    assert "spare digits-0-3 becomes node rank 1, replacing node rank 2 (" in event.message
    planned = plan(job, seen, later(70))
    assert names(planned.create) == ["digits-0-2-r1"]
    assert planned.create_spares == (), "the group comes first"
    new = environment(job, planned.create[0], token="")
    assert (new["NODE_RANK"], new["DDP_GENERATION"], new["WORLD_SIZE"]) == ("2", "1", "3")


@pytest.mark.parametrize("is_there", [True, False])
def test_late_spare_replaces_a_pod_without_a_node(is_there: bool) -> None:
    job, pods = with_spares()
    starting = replace(pods[3], started=None)
    lost = ended(job, 1, code=137, at=59)
    job = recorded(job, plan(job, [pods[0], lost, pods[2], starting], later(63)))
    new = replace(ready(job, 1, replacement=1), node="", phase="Pending")
    members = [pods[0], pods[2], *([new] if is_there else [])]
    if is_there:
        job = stored(job, plan(job, [*members, starting], later(64)))
    assert not plan(job, [*members, starting], later(65)).decided

    planned = plan(job, [*members, pods[3]], later(66))
    job = recorded(job, planned)
    [event] = planned.events
    assert "no node: digits-0-3 becomes node rank 1" in event.message
    assert group(planned).members == "0,3,2"
    assert planned.status.bookkeeping.replacements == {"1": 2}
    assert planned.status.bookkeeping.replacing == ()
    assert (planned.status.restarts, planned.status.disruptions) == (1, 0), (
        "only the loss is charged"
    )
    planned = plan(job, [*members, pods[3]], later(66))
    assert planned.create == ()
    assert planned.delete == ((new.key,) if is_there else ())
    assert len(planned.assignments) == 3
    confirmed = replace(NO_LAUNCHERS, **knowing([pods[0], pods[2], pods[3]], 1))
    planned = plan(job, [pods[0], pods[2], pods[3]], later(67), launchers=confirmed)
    assert condition(planned, "Running")[0] == "True"


def test_spare_used_before_the_first_start_restarts_nothing() -> None:
    job = fresh_job(replicas=1, spares=1, restart={"scope": "Pod"})
    job = stored(job, plan(job, [], later(0)))
    image: dict[str, Any] = {"node": "node-a", "stage": "image", "waiting": "ErrImagePull"}
    pods = [one_pod(job, 0, **image), listening(ready(job, 1))]
    planned = plan(job, pods, later(60))
    job = recorded(job, planned)
    assert world.members(job) == (1,)
    assert (condition(planned, "Restarting"), job.status.phase) == (("", ""), "Pending")
    assert (job.status.restarts, job.status.disruptions) == (0, 0)
    [event] = planned.events
    assert "digits-0-1 becomes node rank 0" in event.message


def test_scope_in_place_restarts_processes_with_the_spare() -> None:
    job, pods = with_spares(scope="InPlace")
    seen = [*pods[:2], ended(job, 2, code=137, at=59), pods[3]]
    planned = plan(job, seen, later(63), launchers=listens("InPlace"))
    job = recorded(job, planned)
    [event] = planned.events
    message = "all processes restart in place, spare digits-0-3 becomes node rank 2"
    assert message in event.message
    members = [*pods[:2], pods[3]]
    planned = plan(job, seen, later(63), launchers=listens("InPlace"))
    assert [assignment.group.start for assignment in planned.assignments] == [False] * 3
    launchers = replace(listens("InPlace"), **knowing(members, 1, start=False))
    planned = plan(job, members, later(70), launchers=launchers)
    assert [assignment.group.start for assignment in planned.assignments] == [True] * 3
    # A process that fails in the spare restarts there.
    confirmed = replace(
        listens("InPlace"),
        **knowing(members, 1),
        failures=(failure(pods[3], generation=1, at=80),),
    )
    planned = plan(job, members, later(81), launchers=confirmed)
    assert (group(planned).generation, group(planned).members) == (2, "0-1,3")
    assert planned.status.failures[-1].index == 2


def test_unreachable_spare_is_ignored_until_it_answers() -> None:
    job, pods = with_spares(scope="InPlace", count=2)
    launchers = listens("InPlace")
    silent = replace(launchers, unreached_since={pods[3].key.name: later(50)})
    assert plan(job, pods, later(60), launchers=silent).status.ready == "3/3 +1"
    assert plan(job, pods, later(60), launchers=launchers).status.ready == "3/3 +2"
    neither = replace(launchers, unreached_since={pod.key.name: later(50) for pod in pods[3:]})
    left = [pods[0], *pods[2:]]
    for known, members in (
        (launchers, "0,3,2"),
        (silent, "0,4,2"),
        (neither, "0-2"),
    ):
        planned = plan(job, left, later(60), launchers=known)
        assert group(planned).members == members
        assert planned.status.bookkeeping.replacements == {"1": 1}, "the lost pod is replaced"


def test_ended_spare_is_uncharged_and_replaced_with_backoff() -> None:
    job, pods = with_spares()
    dead = replace(pods[3], phase="Failed", reason="Evicted")
    planned = plan(job, [*pods[:3], dead], later(60))
    job = recorded(job, planned)
    assert (planned.status.restarts, planned.status.disruptions) == (0, 0)
    assert planned.status.failures == ()
    assert planned.status.incarnation == (0, 0, 0)
    assert [event.reason for event in planned.events] == ["SparesLost"]
    assert condition(planned, "Running")[0] == "True"
    planned = plan(job, [*pods[:3], dead], later(61))
    assert planned.delete == (dead.key,)
    assert planned.create_spares == ()
    assert planned.requeue_at == later(70)
    planned = plan(job, pods[:3], later(70))
    assert names(planned.create_spares) == ["digits-0-3-r1"]
    pauses = []
    for replacement in range(1, 8):
        job = stored(job, plan(job, pods[:3], later(400 * replacement)))
        again = ended(job, 3, code=1, at=1, replacement=replacement)
        job = recorded(job, plan(job, [*pods[:3], again], later(400 * replacement)))
        due = job.status.bookkeeping.no_spare_before
        assert due is not None
        pauses.append((due - later(400 * replacement)).total_seconds())
    assert pauses == [20, 40, 80, 160, 320, 600, 600]


def test_vanished_spare_is_created_under_a_new_name() -> None:
    job, pods = with_spares()
    planned = plan(job, pods[:3], later(60))
    job = recorded(job, planned)
    assert job.status.bookkeeping.replacements == {"3": 1}
    assert job.status.incarnation == (0, 0, 0)
    planned = plan(job, pods[:3], later(70))
    assert names(planned.create_spares) == ["digits-0-3-r1"]
    # A spare that was never observed may exist: it is requested again uncounted.
    job = stored(job, planned)
    assert plan(job, pods[:3], later(71)).create_spares == planned.create_spares


def test_refused_spares_are_created_later() -> None:
    job, pods = with_spares()
    planned = spares.refused(job, "exceeded quota", later(60))
    [event] = planned.events
    assert (event.reason, event.warning) == ("SparesRefused", True)
    assert "exceeded quota" in event.message
    job = stored(job, planned)
    without = with_status(job, spares=())
    assert plan(without, pods[:3], later(61)).create_spares == ()
    assert plan(without, pods[:3], later(120)).create_spares != ()


@pytest.mark.parametrize(
    "state",
    [
        {"deleting": True},
        {"disruption": "PreemptionByScheduler"},
        {"started": None},
        {"address": ""},
        {"phase": "Failed"},
    ],
)
def test_unready_spare_replaces_no_pod(state: dict[str, Any]) -> None:
    job, pods = with_spares()
    seen = [*pods[:2], ended(job, 2, code=137, at=59), replace(pods[3], **state)]
    planned = plan(job, seen, later(63))
    assert planned.status.world is None
    assert planned.status.bookkeeping.replacements == {"2": 1}


def test_spares_are_deleted_with_job_suspension_and_attempt() -> None:
    job, pods = with_spares()
    done = [ended(job, index, code=0, at=100) for index in range(3)]
    job = stored(job, plan(job, [*done, pods[3]], later(110)))
    assert job.status.phase == "Succeeded"
    assert plan(job, [*done, pods[3]], later(111)).delete == (pods[3].key,)

    job, pods = with_spares()
    job = replace(job, spec=job.spec.model_copy(update={"suspend": True}))
    job = recorded(job, plan(job, pods, later(60)))
    assert set(plan(job, pods, later(60)).delete) == {each.key for each in pods}

    job, pods = with_spares()
    hopeless = [ended(job, index, code=1, at=59) for index in range(3)]
    job = recorded(job, plan(job, [*hopeless, pods[3]], later(60)))
    assert job.status.attempt == 1, "no pod is left to rebuild the group"
    assert pods[3].key in plan(job, [*hopeless, pods[3]], later(60)).delete


def test_next_attempt_starts_with_the_first_slots() -> None:
    job, pods = with_spares()
    job = recorded(job, plan(job, [*pods[1:], ended(job, 0, code=137, at=59)], later(63)))
    assert world.members(job) == (3, 1, 2)
    all_lost = [replace(each, phase="Failed", reason="Evicted") for each in (pods[3], *pods[1:3])]
    job = recorded(job, plan(job, all_lost, later(70)))
    assert job.status.attempt == 1
    assert (group(job).generation, group(job).members) == (2, "0-2")
    assert job.status.bookkeeping.replacements == {}


def test_number_of_spares_changes_while_the_job_runs() -> None:
    job, pods = with_spares()
    more = replace(job, spec=job.spec.model_copy(update={"spares": 3}))
    assert names(plan(more, pods, later(60)).create_spares) == ["digits-0-4", "digits-0-5"]
    none = replace(job, spec=job.spec.model_copy(update={"spares": 0}))
    assert plan(none, pods, later(60)).delete == (pods[3].key,)
    # A spare that became a member stays one.
    job = recorded(job, plan(job, [*pods[1:], ended(job, 0, code=137, at=59)], later(63)))
    none = replace(job, spec=job.spec.model_copy(update={"spares": 0}))
    confirmed = replace(NO_LAUNCHERS, **knowing(pods[1:], 1))
    planned = plan(none, pods[1:], later(70), launchers=confirmed)
    assert (planned.delete, planned.create, planned.create_spares) == ((), (), ())
    assert condition(planned, "Running")[0] == "True"


def test_spare_replaces_a_pod_on_a_leaving_node() -> None:
    job, pods = with_spares()
    pods = [replace(each, node=f"node-{each.identity.index}") for each in pods]
    nodes = [Node(f"node-{index}", {}) for index in (0, 1, 3)]
    nodes.append(Node("node-2", {}, leaving="a taint"))
    planned = plan(job, pods, later(60), nodes=nodes)
    assert planned.decided
    assert group(planned).members == "0-1,3"


@pytest.mark.parametrize("members", ["", "0", "0-1,1", "x", "0-2,3", "0-99999", "1-", "3-1,0,2"])
def test_invalid_members_are_ignored(members: str) -> None:
    job, _ = with_spares()
    found = world.world_of(job).model_copy(update={"members": members, "generation": 4})
    job = replace(job, status=job.status.model_copy(update={"world": found}))
    assert list(world.members(job)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("slots", "text"),
    [((0, 1, 2), "0-2"), ((3, 1, 2), "3,1-2"), ((2, 1, 0), "2,1,0"), ((7,), "7"), ((0, 9), "0,9")],
)
def test_formatted_slots_are_read_back(slots: tuple[int, ...], text: str) -> None:
    assert in_ranges(slots) == text
    assert world.read_slots(text) == slots
