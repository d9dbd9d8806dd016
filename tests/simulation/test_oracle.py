"""The simulation itself, where it was once wrong."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from ddp_operator.api.spec.elastic import Elastic
from ddp_operator.api.status import GapReason, GapRecord
from ddp_operator.job.failure import records
from ddp_operator.job.membership.world import first_world
from ddp_operator.job.planning.group.elasticity import GROUP_SHRUNK
from ddp_operator.job.pods.state import START_TIMEOUT
from ddp_operator.job.status.conditions import with_condition

from tests.good_manifests import container, template
from tests.simulation.actions import users
from tests.simulation.checks.group import GroupJudge
from tests.simulation.checks.truth import Ledger, Truth
from tests.simulation.checks.verdicts import Verdicts
from tests.simulation.run import run
from tests.simulation.simulation import Simulation
from tests.simulation.world.kubelet import failed, trainer_exit
from tests.simulation.world.nodes import reporting
from tests.simulation.world.server import shape_of
from tests.unit.job.builders import fresh_job, pod, stored_job, with_status


@pytest.mark.parametrize(
    ("elastic", "is_same"), [({"elastic": {"minReplicas": 1}}, True), ({}, False)]
)
def test_elastic_jobs_of_any_size_have_pods_of_one_shape(
    elastic: dict[str, Any], *, is_same: bool
) -> None:
    shapes = {shape_of(stored_job(replicas=replicas, **elastic)) for replicas in (2, 3)}
    assert (len(shapes) == 1) is is_same


@pytest.mark.parametrize(("hears", "limit"), [(True, 0), (False, 2)])
def test_invalid_spec_is_judged_by_last_one_that_an_operator_received(
    *, hears: bool, limit: int
) -> None:
    simulation = Simulation()
    restart = {"scope": "Gang", "maxRestarts": 2}
    simulation.server.create_job(stored_job(replicas=1, restart=restart)["spec"])
    simulation.advance(1.0)
    if not hears:
        simulation.down_seconds = 60.0
        simulation.kill_operator()
    simulation.server.edit_job({"restart": {**restart, "maxRestarts": 0}})
    simulation.advance(1.0)
    users.break_pattern(simulation)
    job = simulation.job()
    simulation.kill_operator()
    assert job is not None
    assert job.spec.restart.max_restarts == limit


def test_response_to_a_write_also_brings_the_spec_to_the_operator() -> None:
    simulation = Simulation()
    restart = {"scope": "Gang", "maxRestarts": 2}
    simulation.server.create_job(stored_job(replicas=1, restart=restart)["spec"])
    simulation.advance(1.0)
    assert simulation.operator
    simulation.operator.jobs.stall(600.0)
    simulation.server.edit_job({"restart": {**restart, "maxRestarts": 0}})
    simulation.bring_further(simulation.pods()[0])  # the operator records that it has started
    simulation.advance(60.0)
    users.break_pattern(simulation)
    job = simulation.job()
    simulation.kill_operator()
    assert job is not None
    assert job.spec.restart.max_restarts == 0


def test_unanswered_launcher_ends_with_message_of_its_processes() -> None:
    simulation = Simulation()
    spec: dict[str, Any] = {"restart": {"scope": "InPlace"}, "template": template(container())}
    simulation.server.create_job(stored_job(replicas=1, **spec)["spec"])
    simulation.advance(1.0)
    simulation.kill_operator()
    for _ in range(2):
        [one] = simulation.pods()
        simulation.bring_further(one)
    [one] = simulation.pods()
    assert simulation.launchers.fail(one, 1, "uncorrectable ECC error")
    for seconds, ended in ((59, False), (2, True)):
        simulation.clock.seconds += seconds
        simulation.end_after_waiting(one)
        [one] = simulation.pods(live=False)
        assert bool(trainer_exit(one)) is ended
    assert (trainer_exit(one) or {})["message"] == "uncorrectable ECC error"


@pytest.mark.parametrize("recorded", [True, False])
def test_eviction_for_own_storage_hides_unrecorded_failure(*, recorded: bool) -> None:
    simulation = Simulation()
    spec: dict[str, Any] = {"restart": {"scope": "InPlace"}, "template": template(container())}
    simulation.server.create_job(stored_job(replicas=1, **spec)["spec"])
    simulation.advance(1.0)
    for _ in range(2):
        [one] = simulation.pods()
        simulation.bring_further(one)
    simulation.advance(1.0)
    [one] = simulation.pods()
    assert simulation.launchers.fail(one, 1, "uncorrectable ECC error")
    truth = simulation.invariants.truth_of(one)
    truth.failed_as = "Infrastructure"
    if recorded:
        assert simulation.operator is not None
        simulation.operator.listen()
        simulation.advance(0.03)
        assert (simulation.server.job or {})["status"]["failures"]
    simulation.kill_operator()
    simulation.overflow(one)
    assert ("Application" in truth.faults) is not recorded


def test_failure_hidden_by_eviction_may_be_charged() -> None:
    """A GPU fails, the kubelet evicts the pod 10 ms later, and the operator crashes meanwhile."""
    run(
        bytes.fromhex(
            "0000001ba90e851a3b5040d15229f82a4b4ef1ead17660b7a774ac99c40bbcfd0793414e79db76257e270022"
            "0bb8602dea9e67d03ff1f2880bc4ab00fea4764023a49f558c516040e020767d25ac755288226c8cf34cf1e0"
            "502d04d68cfae176a324dd39594144926aa84dac493b"
        )
    )


def test_ended_pod_is_gone_once_it_is_deleted() -> None:
    simulation = Simulation()
    simulation.server.create_job(stored_job(replicas=1, template=template(container()))["spec"])
    simulation.advance(1.0)
    simulation.kill_operator()
    [one] = simulation.pods()
    simulation.bring_further(one)
    [one] = simulation.pods()
    key = simulation.key_of(one)
    simulation.server.end_pod(key)
    assert simulation.pods(live=False)
    simulation.change(one, failed(one, "UnexpectedAdmissionError"))
    simulation.server.end_pod(key)
    assert not simulation.pods(live=False)


@pytest.mark.parametrize("restarts", [True, False])
def test_only_pods_of_the_present_attempt_take_places(*, restarts: bool) -> None:
    """An elastic group of one pod leaves a node, and has more places then."""
    simulation = Simulation()
    simulation.server.create_job(stored_job(replicas=2, template=template(container()))["spec"])
    simulation.advance(1.0)
    simulation.kill_operator()
    for one in simulation.pods():
        simulation.bring_further(one, nodes=("node-b",))
    node = reporting(simulation.server.node_manifests["node-b"], "maintenance")
    simulation.server.put_node(node)
    simulation.clock.seconds += 100
    job = simulation.job()
    assert job is not None
    old = replace(job, status=job.status.model_copy(update={"world": first_world(1)}))
    old = replace(old, spec=job.spec.model_copy(update={"elastic": Elastic(min_replicas=1)}))
    lost = pod(job, node="node-b")
    failure = records.of_lost(job, lost, records.NODE_LEAVING, "", "Disruption", job.created)
    status = old.status.model_copy(
        update={"failures": (failure,), "world": first_world(2), "attempt": int(restarts)}
    )
    broken: list[str] = []
    judge = GroupJudge(
        simulation.server, simulation.clock, simulation.launchers, simulation.scheduler
    )
    judge.judge(
        old,
        replace(old, status=status),
        lambda holds, claim: broken.extend([] if holds else [claim]),
    )
    assert bool(broken) is not restarts


@pytest.mark.parametrize(
    ("is_right", "reason", "is_early"),
    [(True, "Paused", True), (False, "Paused", False), (True, "Unscheduled", False)],
)
def test_group_must_not_shrink_because_of_a_pause_of_the_operator(
    *, is_right: bool, reason: GapReason, is_early: bool
) -> None:
    """It is not judged after the clock was set back, or if a spare replaced the pod meanwhile."""
    simulation = Simulation()
    simulation.kill_operator()
    simulation.invariants.clock_is_right = is_right
    now = simulation.clock.now()
    old = with_status(
        fresh_job(elastic={"minReplicas": 1}),
        next_start_time=now + timedelta(seconds=100),
        gaps=(GapRecord(node_ranks="1", reason=reason, since=now),),
    )
    status = with_condition(old.status, "Restarting", True, GROUP_SHRUNK, "1 of 2 pods", now)
    broken: list[str] = []

    def require(holds: object, claim: str) -> None:
        broken.extend([] if holds else [claim])

    judge = GroupJudge(
        simulation.server, simulation.clock, simulation.launchers, simulation.scheduler
    )
    judge.judge(old, replace(old, status=status), require)
    assert bool(broken) is is_early


@pytest.mark.parametrize("is_right", [True, False])
def test_start_may_be_late_by_a_clock_that_is_ahead(*, is_right: bool) -> None:
    job = fresh_job()
    broken: list[str] = []
    failure = records.of_lost(job, pod(job), START_TIMEOUT, "", "Infrastructure", job.created)
    verdicts = Verdicts(
        require=lambda holds, claim: broken.extend([] if holds else [claim]),
        truth_of=lambda _: Truth(faults={"Disruption"}),
        ledger=Ledger(),
        broken_nodes=(),
        avoids_a_node=False,
        clock_is_right=is_right,
        seconds=0.0,
    )
    verdicts._cause(job, failure, charged=False)
    assert bool(broken) is is_right
