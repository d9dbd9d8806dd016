"""Tests of gaps, which are the members that do not train: reasons, times and consequences."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.job.membership import world
from ddp_operator.job.membership.launchers import LauncherStates
from ddp_operator.job.planning import gap_records
from ddp_operator.job.planning.convergence import report_refusal
from ddp_operator.job.planning.gaps import NODE_SECONDS, UNSTARTABLE_SECONDS
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.projection import project
from ddp_operator.job.pods.state import Identity, PodState
from ddp_operator.job.status.progress import Report
from ddp_operator.ports import Node
from ddp_protocol.progress import TrainerStatus

from tests.good_manifests import Json, template
from tests.unit.cpu_budget import loops
from tests.unit.job.builders import (
    condition,
    ended,
    fresh_job,
    group,
    later,
    pod,
    ready,
    running_job,
    stored,
    with_status,
)
from tests.unit.job.planning.group.test_elasticity import (
    elastic_job,
    member_pod,
    plan_with,
    settled,
)
from tests.unit.job.planning.group.test_in_place import knowing
from tests.unit.job.planning.group.test_spares import with_spares
from tests.unit.job.status.test_progress import report

CONTAINERS_CAN_START = {"type": "PodReadyToStartContainers"}
RUNS: Json = {"state": {"running": {}}}
STARTED = "2026-03-01T12:00:00Z"
UNAVAILABLE = "failed to pull and unpack image: unexpected status: 503 Service Unavailable"


def reasons(job: DDPJob) -> dict[int, str]:
    return {node_rank: reason for node_rank, (reason, _) in gap_records.known(job.status).items()}


def trained(**spec: Any) -> tuple[DDPJob, list[PodState]]:
    """Return a job that has run, and its pods."""
    job, pods = running_job(**{"replicas": 3, **spec})
    pods = [replace(one, started=later(5), node=f"node-{one.identity.index}") for one in pods]
    return stored(job, plan(job, pods, later(20))), pods


def stuck(job: DDPJob, index: int, message: str, **state: Any) -> PodState:
    waiting: dict[str, Any] = {"waiting": "ErrImagePull", "waiting_message": message}
    return pod(job, index, **{"node": "node-9", "stage": "image", **waiting, **state})


def over_time(
    job: DDPJob, pods: Sequence[PodState], start: float, end: float, **seen: Any
) -> DDPJob:
    """Return the job after two reconciles."""
    for now in (later(start), later(end)):
        job = stored(job, plan(job, list(pods), now, **seen))
    return job


class TestImages:
    """Image errors after a first run, and errors of a registry, are no configuration errors."""

    def evicted(self, **spec: Any) -> tuple[DDPJob, list[PodState]]:
        """Return a job with new pods after an eviction; one of them is still missing."""
        job, pods = trained(**spec)
        lost = replace(pods[2], phase="Failed", reason="Preempted")
        job = stored(job, plan(job, [*pods[:2], lost], later(60)))
        job = stored(job, plan(job, [], later(70)))
        return job, [replace(ready(job, index), started=later(71)) for index in (0, 1)]

    @pytest.mark.parametrize(
        ("reason", "ran"),
        [("Error", True), ("StartError", False), ("ContainerStatusUnknown", False)],
    )
    def test_ended_pod_has_run_unless_its_container_never_started(
        self, reason: str, *, ran: bool
    ) -> None:
        job = fresh_job(replicas=1)
        pods = [ended(job, 0, code=1, at=60, reason=reason)]
        status = plan(job, pods, later(61)).status
        assert bool(status.bookkeeping.ran_spec_hash) is ran

    def test_pods_of_an_earlier_attempt_have_run(self) -> None:
        job = with_status(fresh_job(overrides=[{"indexes": ["0"], "nprocPerNode": 2}]), attempt=1)
        old = [
            pod(job, index, identity=Identity(index, 0), phase="Running", started=later(5))
            for index in (0, 1)
        ]
        assert not plan(job, old[:1], later(60)).status.bookkeeping.ran_spec_hash
        assert plan(job, old, later(60)).status.bookkeeping.ran_spec_hash == job.spec_hash

    @pytest.mark.parametrize("attempt", [0, 1])
    def test_running_spare_has_run(self, attempt: int) -> None:
        job = with_status(fresh_job(replicas=1, spares=1), attempt=attempt)
        spare = pod(job, 1, identity=Identity(1, 0), phase="Running", started=later(5))
        assert plan(job, [spare], later(60)).status.bookkeeping.ran_spec_hash == job.spec_hash

    @pytest.mark.parametrize("message", [UNAVAILABLE, "not found", "unauthorized"])
    def test_pod_without_image_after_a_first_run_is_moved(self, message: str) -> None:
        job, others = self.evicted()
        assert job.status.attempt == 1
        pods = [*others, stuck(job, 2, message)]
        assert not plan(job, pods, later(72)).decided
        job = over_time(job, pods, 72, 72 + UNSTARTABLE_SECONDS)
        status = job.status
        assert (status.phase, status.attempt, status.restarts) == ("Restarting", 1, 0)
        assert status.bookkeeping.replacements == {"2": 1}
        assert "cannot start: ErrImagePull on node node-9" in status.message
        again = plan(job, pods, later(400))
        assert [each.pod_name(job.name) for each in again.create] == ["digits-1-2-r1"]
        [term] = manifests.pod(job, Identity(2, 1, 1))["spec"]["affinity"]["nodeAffinity"][
            "preferredDuringSchedulingIgnoredDuringExecution"
        ]
        [field] = term["preference"]["matchFields"]
        assert (field["operator"], field["values"]) == ("NotIn", ["node-9"])

    def test_repeated_missing_image_after_a_first_run_is_never_charged(self) -> None:
        job, others = self.evicted(restart={"maxRestarts": 0})
        for number in range(8):
            replaced = stuck(job, 2, "not found", replacement=number)
            pods = [*others, replaced]
            begin = 100 + 1000 * number
            job = over_time(job, pods, begin, begin + UNSTARTABLE_SECONDS)
            job = stored(job, plan(job, others, later(begin + 900)))
        assert (job.status.phase, job.status.restarts) == ("Restarting", 0)
        assert job.status.bookkeeping.replacements == {"2": 8}

    @pytest.mark.parametrize(
        "message",
        [
            UNAVAILABLE,
            "503",
            "received unexpected HTTP status: 502 Bad Gateway",
            "toomanyrequests: You have reached your pull rate limit",
            "dial tcp 10.0.0.1:443: connect: connection refused",
            "dial tcp 10.0.0.1:443: i/o timeout",
            "dial tcp 10.0.0.1:443: connect: no route to host",
            "net/http: TLS handshake timeout",
            "context deadline exceeded",
            "pull QPS exceeded",
        ],
    )
    def test_registry_error_at_the_first_start_is_not_charged(self, message: str) -> None:
        job = self.first_start(fresh_job(), message)
        assert job.status.phase == "Restarting"
        assert (job.status.restarts, job.status.disruptions) == (0, 1)

    def first_start(self, job: DDPJob, message: str, **first_pod: Any) -> DDPJob:
        """Return the job after its second pod could not start for long."""
        job = stored(job, plan(job, [], later(0)))
        pods = [replace(ready(job, 0), **first_pod), stuck(job, 1, message)]
        return over_time(job, pods, 2, 2 + UNSTARTABLE_SECONDS)

    @pytest.mark.parametrize(
        "message",
        [
            "reg/x:503: not found",
            'image "reg:5000/x:429": manifest unknown',
            "lookup registry.example.con: no such host",
            "pull access denied, repository does not exist or may require authorization",
            "unexpected status from HEAD request to https://reg/v2/x: 403 Forbidden",
        ],
    )
    def test_image_that_a_second_node_cannot_get_fails_the_job(self, message: str) -> None:
        other = {"spec": {"containers": [{"name": "trainer", "image": "wrong"}]}}
        overridden = fresh_job(overrides=[{"indexes": ["1"], "template": other}])
        for job in (
            self.first_start(fresh_job(), message),
            self.first_start(overridden, message, started=later(1)),
        ):
            [failure] = job.status.failures
            assert (job.status.phase, failure.class_) == ("Restarting", "Infrastructure")
            assert failure.action == "RestartPod", "the other pods wait"
            for node, phase in (("node-9", "Restarting"), ("node-8", "Failed")):
                again = self.second_start(job, message, node=node)
                assert again.status.phase == phase, node
                assert (again.status.failures[-1].class_ == "Configuration") is (phase == "Failed")

    def second_start(self, job: DDPJob, message: str, **state: Any) -> DDPJob:
        """Return the job after its second pod could not start again, elsewhere perhaps."""
        number = job.status.bookkeeping.replacements["1"]
        pods = [ready(job, 0), stuck(job, 1, message, replacement=number, **state)]
        return over_time(job, pods, 400, 400 + UNSTARTABLE_SECONDS)

    @pytest.mark.parametrize(
        ("waiting", "message"),
        [
            ("CreateContainerError", "mkdir /var/lib/containerd/x: no space left on device"),
            ("CreateContainerError", "mkdir /run/x: read-only file system"),
            ("CreateContainerError", "lstat /dev/nvidia5: no such file or directory"),
            ("CreateContainerError", "an error of a release to come"),
            ("CreateContainerConfigError", "failed to prepare subPath for volumeMount x"),
            ("ErrImagePull", "write /var/lib/containerd/x: no space left on device"),
            ("ErrImagePull", "tls: failed to verify certificate: x509: certificate signed by "
             "unknown authority"),
            ("ErrImagePull", "an error of a release to come"),
            ("ImagePullBackOff", 'Back-off pulling image "reg/x:1"'),
        ],
    )  # fmt: skip
    def test_fault_of_one_node_at_the_first_start_moves_the_pod(
        self, waiting: str, message: str
    ) -> None:
        job = fresh_job(replicas=1)
        job = stored(job, plan(job, [], later(0)))
        pods = [stuck(job, 0, message, waiting=waiting)]
        job = over_time(job, pods, 2, 2 + UNSTARTABLE_SECONDS)
        assert (job.status.phase, job.status.restarts, job.status.attempt) == ("Restarting", 0, 1)
        [term] = manifests.pod(job, Identity(0, 1))["spec"]["affinity"]["nodeAffinity"][
            "preferredDuringSchedulingIgnoredDuringExecution"
        ]
        assert term["preference"]["matchFields"][0]["values"] == ["node-9"]

    def test_pods_on_two_nodes_that_cannot_start_fail_the_job(self) -> None:
        job = stored(fresh_job(), plan(fresh_job(), [], later(0)))
        pods = [stuck(job, index, "not found", node=f"node-{index}") for index in (0, 1)]
        job = over_time(job, pods, 2, 2 + UNSTARTABLE_SECONDS)
        assert (job.status.phase, job.status.failures[0].class_) == ("Failed", "Configuration")

    def test_cause_that_two_nodes_agree_on_stays_known(self) -> None:
        """Only ten failures are on record, and a rule may restart the pod more often."""
        rules = [{"ranks": [0], "action": "RestartPod"}]
        job = fresh_job(replicas=1, restart={"maxRestarts": 0, "rules": rules})
        found: list[str] = []
        for tries in range(12):
            begin = 10_000 * tries
            job = stored(job, plan(job, [], later(begin)))
            attempt = job.status.attempt
            pods = [stuck(job, 0, "not found", attempt=attempt, node=f"node-{tries % 2}")]
            job = over_time(job, pods, begin + 1, begin + 1 + UNSTARTABLE_SECONDS)
            found.append(job.status.failures[-1].class_)
        assert found == ["Infrastructure", *11 * ["Configuration"]]
        assert job.status.restarts == 0

    def test_different_errors_on_two_nodes_do_not_agree(self) -> None:
        job = self.first_start(fresh_job(), UNAVAILABLE)
        assert self.second_start(job, "not found", node="node-8").status.phase == "Restarting"

    def test_one_node_that_cannot_start_a_pod_uses_up_the_restarts(self) -> None:
        job = fresh_job(replicas=1, restart={"maxRestarts": 1})
        tries = 0
        while not job.status.finished:
            begin = 10_000 * (tries := tries + 1)
            job = stored(job, plan(job, [], later(begin)))
            pods = [stuck(job, 0, "not found", attempt=job.status.attempt)]
            job = over_time(job, pods, begin + 1, begin + 1 + UNSTARTABLE_SECONDS)
        assert (job.status.reason, tries) == ("MaxRestartsExceeded", 5)

    def test_rendezvous_timeout_of_a_peer_is_not_charged(self) -> None:
        job, others = self.evicted()
        message = "torch.distributed.elastic: RendezvousTimeoutError"
        gave_up = ended(job, 1, code=1, at=200, message=message)
        pods = [others[0], gave_up, stuck(job, 2, UNAVAILABLE)]
        job = over_time(job, pods, 200, 204)
        assert job.status.attempt == 2
        assert (job.status.restarts, job.status.disruptions) == (0, 2)


class TestStart:
    """A pod has a limited time from its node to its first process."""

    SECRET = template(volumes=[{"name": "key", "secret": {"secretName": "key"}}])

    def late(self, job: DDPJob, index: int, **state: Any) -> PodState:
        return pod(job, index, **{"node": f"node-{index}", "stage": "sandbox", **state})

    def test_pod_beyond_the_start_timeout_is_replaced_uncharged(self) -> None:
        job = fresh_job(replicas=3)
        job = stored(job, plan(job, [], later(0)))
        pods = [replace(ready(job, index), started=later(5)) for index in (0, 1)]
        pods.append(self.late(job, 2))
        first = plan(job, pods, later(6))
        assert first.requeue_at == later(606)
        job = stored(job, first)
        assert not plan(job, pods, later(605)).decided
        job = stored(job, plan(job, pods, later(606)))
        assert (job.status.attempt, job.status.restarts) == (0, 0)
        assert job.status.bookkeeping.replacements == {"2": 1}
        [failure] = job.status.failures
        assert (failure.reason, failure.node, failure.charged) == ("StartTimeout", "node-2", False)
        assert "its volumes or its network are not ready" in failure.message

    @pytest.mark.parametrize(
        ("disruption", "class_"), [("", "Infrastructure"), ("TerminationByKubelet", "Disruption")]
    )
    def test_pod_that_was_told_to_go_does_not_blame_its_node(
        self, disruption: str, class_: str
    ) -> None:
        job = fresh_job(replicas=1)
        job = stored(job, plan(job, [], later(0)))
        late = self.late(job, 0, disruption=disruption)
        job = stored(job, plan(job, [late], later(6)))
        job = stored(job, plan(job, [late], later(606)))
        [failure] = job.status.failures
        assert (failure.reason, failure.class_) == ("StartTimeout", class_)

    def test_images_take_longer_and_init_containers_have_no_limit(self) -> None:
        job, pods = trained()
        pulling = [*pods[:2], self.late(job, 2, stage="image")]
        job = replace(job, status=job.status.updated(gaps=()))
        assert plan(job, pulling, later(30)).requeue_at == later(30 + 1800)
        begun = [*pods[:2], self.late(job, 2, stage="")]
        planned = plan(job, begun, later(30))
        assert reasons(stored(job, planned)) == {2: "Initializing"}
        assert planned.requeue_at is None

    def test_ready_spare_replaces_a_pod_beyond_the_start_timeout(self) -> None:
        job, pods = with_spares()
        late = self.late(job, 1)
        job = replace(job, status=job.status.updated(gaps=()))
        seen = [pods[0], late, *pods[2:]]
        job = over_time(job, seen, 100, 700)
        assert group(job).members == "0,3,2"

    def test_missing_secret_fails_a_job_that_never_ran(self) -> None:
        job = fresh_job(template=self.SECRET, restart={"maxRestarts": 9})
        job = stored(job, plan(job, [], later(0)))
        for begin in (1, 2000):
            attempt, notes = job.status.attempt, job.status.bookkeeping.replacements
            pods = [self.late(job, index, replacement=notes.get(str(index), 0)) for index in (0, 1)]
            assert job.status.phase != "Failed", attempt
            job = over_time(job, pods, begin, begin + 600)
            if job.status.phase != "Failed":
                job = stored(job, plan(job, [], later(begin + 1000)))
        assert (job.status.phase, job.status.failures[-1].class_) == ("Failed", "Configuration")
        assert "secret key" in job.status.message

    def test_missing_secret_never_fails_a_job_that_has_run(self) -> None:
        job, pods = trained(template=self.SECRET, restart={"maxRestarts": 0})
        for number in range(6):
            begin = 100 + 2000 * number
            late = self.late(job, 2, replacement=number)
            job = over_time(job, [*pods[:2], late], begin, begin + 600)
            job = stored(job, plan(job, pods[:2], later(begin + 1000)))
        assert (job.status.phase, job.status.restarts) == ("Restarting", 0)
        assert job.status.bookkeeping.replacements == {"2": 6}

    @pytest.mark.parametrize(
        ("status", "stage"),
        [
            ({"conditions": [{**CONTAINERS_CAN_START, "status": "False"}]}, "sandbox"),
            ({"conditions": [{**CONTAINERS_CAN_START, "status": "True"}]}, "image"),
            ({}, "sandbox"),
            ({"startTime": STARTED}, "image"),
            ({"initContainerStatuses": [{"name": "copy", **RUNS}]}, ""),
            ({"startTime": STARTED, "initContainerStatuses": [{"name": "car", **RUNS}]}, "image"),
            ({"containerStatuses": [{"name": "trainer", **RUNS}]}, ""),
        ],
    )
    def test_pod_status_gives_the_stage_of_its_start(self, status: Any, stage: str) -> None:
        manifest = manifests.pod(fresh_job(), Identity(0, 0))
        cars = [{"name": "copy"}, {"name": "car", "restartPolicy": "Always"}]
        spec = {**manifest["spec"], "nodeName": "node-a", "initContainers": cars}
        assert project({**manifest, "spec": spec, "status": status}).stage == stage
        assert project({**manifest, "status": status}).stage == "", "the pod has no node"


class TestPauses:
    def test_backoff_does_not_count_as_absence(self) -> None:
        job, pods = elastic_job(minReplicas=2, shrinkAfterSeconds=30)
        lost = ended(job, 1, code=1, at=59)
        seen = [lost if each.identity.index == 1 else each for each in pods]
        job = stored(job, plan_with(job, seen, later(63)))
        job = with_status(job, next_start_time=later(183))
        others = [pods[0], *pods[2:]]
        job = settled(job, others, later(64))
        assert reasons(job) == {1: "Paused"}
        for now in (94, 120, 182):
            assert not plan_with(job, others, later(now)).decided
        job = settled(job, others, later(183))
        assert reasons(job) == {1: "Unscheduled"}
        waiting = [*others, pod(job, 1, replacement=1)]
        job = settled(job, waiting, later(184))
        assert not plan_with(job, waiting, later(212)).decided
        assert plan_with(job, waiting, later(213)).events[0].reason == "GroupShrunk"

    def test_restarted_operator_counts_training_pods(self) -> None:
        job, pods = elastic_job(minReplicas=2, shrinkAfterSeconds=0)
        lost = ended(job, 2, code=137, at=59)
        job = settled(job, [*pods[:2], lost, pods[3]], later(63))
        others = [*pods[:2], pods[3]]
        known = knowing(others, group(job).generation)
        job = stored(job, plan_with(job, others, later(70), **known))
        assert (job.status.phase, job.status.ready_replicas) == ("Running", 3)
        new = plan(job, others, later(71), launchers=LauncherStates())
        assert new.status.ready_replicas == 3
        assert condition(new, "Running") == ("True", "PodsReady")


def test_elastic_group_starts_without_a_refused_pod() -> None:
    elastic = {"minReplicas": 2, "shrinkAfterSeconds": 30}
    job = fresh_job(replicas=4, restart={"scope": "Auto"}, elastic=elastic)
    job = stored(job, plan_with(job, [], later(0)))
    for now in (1, 20, 30):
        pods = [member_pod(job, index) for index in range(3)]
        planned = plan_with(job, pods, later(now))
        assert not planned.decided
        assert planned.seen is not None
        seen = replace(job, status=planned.seen)
        held = report_refusal(seen, "PodsForbidden", "quota", later(now), wanted=planned.create)
        job = stored(job, held)
    assert reasons(job) == {3: "Refused"}
    planned = plan_with(job, pods, later(31))
    assert group(planned).members == "0-2"


class TestNodes:
    """Pods on a lost node that the cluster does not evict are replaced."""

    WELL = tuple(Node(f"node-{number}", {}) for number in range(8))

    def nodes(self, **of_2: Any) -> list[Node]:
        return [replace(one, **of_2) if one.name == "node-2" else one for one in self.WELL]

    def job(self) -> tuple[DDPJob, list[PodState]]:
        job, pods = trained(restart={"scope": "Pod"})
        return job, [replace(one, stays_on_lost_node=True) for one in pods]

    def looked(self, pods: Sequence[PodState], job: DDPJob, now: float) -> DDPJob:
        return stored(job, plan(job, list(pods), later(now), nodes=self.nodes(unready=True)))

    def test_pods_on_an_unready_node_are_replaced(self) -> None:
        job, pods = self.job()
        job = self.looked(pods, job, 100)
        assert reasons(job) == {2: "Silent"}
        job = self.looked(pods, job, 99 + NODE_SECONDS)
        assert job.status.disruptions == 0
        job = self.looked(pods, job, 100 + NODE_SECONDS)
        [failure] = job.status.failures
        assert (failure.reason, failure.class_, failure.node) == (
            "NodeLost",
            "Disruption",
            "node-2",
        )
        assert job.status.bookkeeping.replacements == {"2": 1}
        assert job.status.excluded_nodes == ("node-2",), "the new pod tolerates its taint"
        planned = plan(job, pods, later(192), nodes=self.nodes(unready=True))
        assert planned.fence == planned.delete == (pods[2].key,)

    def test_node_that_is_ready_again_restarts_the_clock(self) -> None:
        job, pods = self.job()
        job = self.looked(pods, job, 100)
        job = stored(job, plan(job, pods, later(150), nodes=self.nodes()))
        assert job.status.gaps == ()
        job = self.looked(pods, job, 200)
        assert not plan(job, pods, later(285), nodes=self.nodes(unready=True)).decided

    def test_pods_that_the_cluster_evicts_are_left_to_it(self) -> None:
        job, pods = self.job()
        pods[2] = replace(pods[2], stays_on_lost_node=False)
        job = self.looked(pods, job, 100)
        assert self.looked(pods, job, 500).status.disruptions == 0

    def test_progress_keeps_pods_on_an_unready_node(self) -> None:
        job, pods = self.job()
        nodes = self.nodes(unready=True)
        for now in range(100, 600, 30):
            status = TrainerStatus.read(f'{{"step": {now}}}'.encode())
            at = later(now)
            report = Report(job.uid, pods[0].identity, status, first_received=at, received=at)
            planned = plan(job, pods, later(now), nodes=nodes, report=report)
            assert not planned.decided
            job = stored(job, planned)

    @pytest.mark.parametrize(
        ("tolerations", "stays"),
        [
            ([{"operator": "Exists"}], True),
            ([{"key": "node.kubernetes.io/unreachable", "operator": "Exists"}], True),
            ([{"operator": "Exists", "effect": "NoSchedule"}], False),
            ([{"operator": "Exists", "tolerationSeconds": 300}], False),
            ([{"key": "nvidia.com/gpu", "operator": "Exists"}], False),
            ([], False),
        ],
    )
    def test_tolerations_decide_if_a_pod_stays_on_a_lost_node(
        self, tolerations: Any, stays: bool
    ) -> None:
        manifest = manifests.pod(fresh_job(), Identity(0, 0))
        spec = {**manifest["spec"], "tolerations": tolerations}
        assert project({**manifest, "spec": spec}).stays_on_lost_node is stays

    def test_no_pod_leaves_for_a_spare_on_a_bad_node(self) -> None:
        job, pods = with_spares(count=2)
        pods = [replace(each, node=f"node-{each.identity.index}") for each in pods]
        on_the_same = [*pods[:3], replace(pods[3], node="node-2"), pods[4]]
        nodes = [Node(f"node-{index}", {}) for index in (0, 1, 2, 4)]
        nodes[2] = replace(nodes[2], leaving="a taint")
        planned = plan(job, on_the_same, later(60), nodes=nodes)
        assert group(planned).members == "0-1,4"
        for signal in ({"leaving": "another taint"}, {"bad": "a condition"}, {"unready": True}):
            named = [*nodes[:3], replace(nodes[3], **signal)]
            planned = plan(job, on_the_same, later(60), nodes=named)
            assert (planned.status.failures, planned.status.world) == ((), job.status.world)

    @pytest.mark.parametrize("signal", [{"leaving": "a taint"}, {"bad": "a condition"}])
    def test_spare_on_a_bad_node_is_used_last(self, signal: dict[str, Any]) -> None:
        job, pods = with_spares(count=2)
        pods = [replace(each, node=f"node-{each.identity.index}") for each in pods]
        nodes = [Node(f"node-{index}", {}) for index in range(5)]
        nodes[3] = replace(nodes[3], **signal)
        lost = replace(pods[2], phase="Failed", reason="Evicted")
        seen = [*pods[:2], lost, *pods[3:]]
        assert world.members(stored(job, plan(job, seen, later(60), nodes=nodes))) == (0, 1, 4)


LOSSES: list[dict[str, Any] | None] = [
    None,
    {"phase": "Failed", "reason": "Evicted"},
    {"deleting": True},
]
"""How a pod is lost; None: it vanishes."""


@pytest.mark.parametrize("how", LOSSES)
class TestLateLosses:
    """A pod that is lost after the last step completes only by the trainer's own word."""

    COMPLETE = '{"step": 100, "totalSteps": 100, "checkpoint": {"step": 100}'

    def job(self, more: str = ', "done": true') -> tuple[DDPJob, list[PodState]]:
        """Return a job of which pod 0 ended with this report, and pod 1 too."""
        job, pods = trained()
        message = self.COMPLETE + more + "}"
        done = [ended(job, index, code=0, at=30, message=message) for index in (0, 1)]
        return stored(job, plan(job, [*done, pods[2]], later(31))), [*done, pods[2]]

    def lost(self, pod: PodState, how: dict[str, Any] | None) -> list[PodState]:
        return [] if how is None else [replace(pod, **how)]

    def test_pod_lost_after_done_completes_the_job(self, how: dict[str, Any] | None) -> None:
        job, pods = self.job()
        planned = plan(job, [*pods[:2], *self.lost(pods[2], how)], later(32))
        assert (planned.status.phase, planned.status.attempt) == ("Succeeded", 0)
        lost = "1 lost after the trainer reported that it is done"
        assert (lost in planned.status.message) is bool(how)

    @pytest.mark.parametrize("more", ["", ', "done": false', ', "done": "yes"'])
    def test_pod_lost_after_the_last_step_restarts(
        self, how: dict[str, Any] | None, more: str
    ) -> None:
        job, pods = self.job(more)
        planned = plan(job, [*pods[:2], *self.lost(pods[2], how)], later(32))
        assert planned.status.attempt == 1

    def test_all_pods_lost_after_done_complete_the_job(self, how: dict[str, Any] | None) -> None:
        job, pods = trained()
        seen = report(100, received=30, done=True)
        job = stored(job, plan(job, pods, later(30), report=seen))
        gone = [each for pod in pods for each in self.lost(pod, how)]
        assert plan(job, gone, later(40)).status.phase == "Succeeded"
        assert plan(with_status(job, done_at=None), gone, later(40)).status.attempt == 1

    def test_done_of_an_earlier_attempt_does_not_count(self, how: dict[str, Any] | None) -> None:
        job, pods = trained()
        job = stored(job, plan(job, pods, later(30), report=report(100, received=30, done=True)))
        failed = ended(job, 0, code=1, at=31)
        job = stored(job, plan(job, [failed, *pods[1:]], later(32)))
        job = stored(job, plan(job, [], later(33)))
        new = [replace(ready(job, index), started=later(34)) for index in range(3)]
        job = stored(job, plan(job, new, later(35)))
        assert (job.status.attempt, job.status.phase) == (1, "Running")
        lost = [*new[:2], *self.lost(new[2], how)]
        assert plan(job, lost, later(40)).status.attempt == 2


def test_failure_after_done_is_charged() -> None:
    job, pods = trained()
    job = stored(job, plan(job, pods, later(30), report=report(100, received=30, done=True)))
    failed = ended(job, 2, code=1, at=32)
    assert plan(job, [*pods[:2], failed], later(33)).status.restarts == 1


def test_plan_of_5000_pods_is_fast() -> None:
    job = fresh_job(replicas=5000)
    job = stored(job, plan(job, [], later(0)))
    pending = [pod(job, index) for index in range(5000)]
    trains = [replace(ready(job, index), started=later(5)) for index in range(5000)]
    for pods in (pending, [*trains[:4999], pending[4999]], trains):
        job = stored(job, plan(job, pods, later(10)))
        assert loops(lambda: plan(job, pods, later(20))) < 1  # noqa: B023
