"""Tests of the projection of stored pods, and of the description of their end."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, ClassVar

import pytest
from ddp_client.views.job import advice
from ddp_operator.api.constants import KUEUE_GROUP, KUEUE_MANAGED, KUEUE_RETRIABLE
from ddp_operator.api.status import Failure
from ddp_operator.job.failure import classes, records
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.observed import observe
from ddp_operator.job.pods.projection import job_of, project
from ddp_operator.job.pods.state import Identity, PodState, QueueMember
from ddp_operator.ports import Key, MalformedError
from hypothesis import given
from hypothesis import strategies as st

from tests.good_manifests import Json, container, template
from tests.unit.job.builders import (
    NOW,
    ended,
    fresh_job,
    later,
    pod,
    running_job,
    stored,
    with_status,
)

T0 = "2026-03-01T12:00:00Z"


def manifest(
    *containers: Json, status: Json | None = None, metadata: Json | None = None, **spec: Any
) -> Json:
    """Return rank 1's stored pod after two replacements."""
    job = fresh_job(template=template(*containers))
    created = manifests.pod(job, Identity(index=1, attempt=3, replacement=2))
    created["metadata"] |= metadata or {}
    created["spec"] |= spec
    return created | {"status": status or {}}


def terminated(code: int, name: str = "trainer", **fields: Any) -> Json:
    state = {"exitCode": code, "finishedAt": T0, "reason": "Error", **fields}
    return {"name": name, "state": {"terminated": state}}


def condition(type_: str, status: str, **fields: str) -> Json:
    return {"type": type_, "status": status, **fields}


def read(
    *containers: Json,
    phase: str = "Failed",
    conditions: Sequence[Json] = (),
    metadata: Json | None = None,
    **status: Any,
) -> PodState:
    """Return the projection of a pod with these container statuses and conditions."""
    lists = {"conditions": [*conditions], "containerStatuses": [*containers]}
    return project(manifest(status={"phase": phase, **lists, **status}, metadata=metadata))


def target(reason: str, since: str = T0, **fields: str) -> Json:
    """Return the condition of a pod that is disrupted."""
    since_then = {"reason": reason, "lastTransitionTime": since}
    return condition("DisruptionTarget", "True", **since_then, **fields)


def deletion(until: str, grace: int = 30) -> Json:
    """Return the metadata of a deleted pod; `until` is the end of its grace period."""
    return {"deletionTimestamp": until, "deletionGracePeriodSeconds": grace}


def test_created_pod_is_read_back() -> None:
    job = fresh_job()
    pod = project(manifest())
    assert pod.identity == Identity(1, 3, 2)
    assert pod.key == Key("research", "digits-3-1-r2")
    assert (pod.owner_uid, pod.spec_hash) == (job.uid, job.spec_hash)
    assert (pod.phase, pod.serving, pod.ready, pod.scheduled) == (
        "Pending",
        True,
        False,
        False,
    )
    assert not any((pod.failed, pod.succeeded, pod.disrupted, pod.deleting))
    assert job_of(manifest()) == job.key


def test_equal_strings_are_shared_between_pods() -> None:
    text = json.dumps(manifest(nodeName="node-a", status={"phase": "Running"}))
    one, other = project(json.loads(text)), project(json.loads(text))
    for name in ("owner_uid", "spec_hash", "phase", "node", "container"):
        assert getattr(one, name) is getattr(other, name)


def test_status_of_a_running_pod() -> None:
    running = {"name": "trainer", "state": {"running": {"startedAt": "2026-01-01T00:00:09Z"}}}
    pod = read(running, phase="Running", conditions=[condition("Ready", "True")])
    assert (pod.phase, pod.ready) == ("Running", True)
    assert pod.started == datetime(2026, 1, 1, 0, 0, 9, tzinfo=UTC)
    assert project(manifest(nodeName="node-a")).node == "node-a"


def test_fenced_pod_does_not_serve() -> None:
    stored = manifest()
    del stored["metadata"]["labels"]["ddp-operator.io/serving"]
    assert not project(stored).serving


def test_terminal_sequences_are_removed_from_messages() -> None:
    message = "\x1b[2J\x1b]0;mine\x07line 1\r\n\tline 2 \u202efdp.exe\x00\x9b31m é 界"
    pod = read(terminated(3, message=message))
    assert pod.exit is not None
    assert pod.exit.message == "line 1 \n\tline 2 fdp.exe31m é 界"


@pytest.mark.parametrize("phase", ["Running", "Failed"])
def test_exit_of_the_trainer_decides_and_not_the_phase(phase: str) -> None:
    running = {"name": "logs", "state": {"running": {}}}
    pod = read(running, terminated(3, message="boom"), phase=phase)
    assert pod.failed
    assert pod.exit is not None
    assert (pod.exit.code, pod.exit.message, pod.exit.finished) == (3, "boom", NOW)
    assert not read(terminated(1, "logs"), phase="Running").failed, "a side car failed"


class TestSideCar:
    """Side cars are other containers than the trainer; native ones are init containers."""

    def read(self, *side_cars: Json, trainer: Json, **status: Any) -> PodState:
        names = [container(each["name"]) for each in side_cars]
        statuses = [{"name": "trainer", **trainer}, *side_cars]
        status |= {"phase": "Running", "containerStatuses": statuses}
        status["conditions"] = [condition("Ready", "False")]
        return project(manifest(container(), *names, status=status))

    RUNNING: ClassVar[Json] = {"ready": True, "state": {"running": {}}}
    ENDED: ClassVar[Json] = {"ready": False, "state": {"terminated": {"exitCode": 0}}}
    LOOPS: ClassVar[Json] = {
        "name": "proxy",
        "ready": False,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 20s"}},
        "lastState": {"terminated": {"exitCode": 2, "message": "no such host"}},
    }

    def test_running_side_car_holds_the_pod(self) -> None:
        held = self.read({"name": "logs", **self.RUNNING}, trainer=self.ENDED)
        assert (held.held_by, held.succeeded) == ("logs", True)
        assert self.read({"name": "logs", **self.RUNNING}, trainer=self.RUNNING).held_by == ""

    def test_native_side_car_does_not_hold_the_pod(self) -> None:
        native = [{"name": "proxy", **self.RUNNING}]
        assert self.read(trainer=self.ENDED, initContainerStatuses=native).held_by == ""

    def test_side_car_that_failed_is_described_by_its_last_line(self) -> None:
        state = {"terminated": {"exitCode": 3, "message": "starting\nno such upstream\n"}}
        failed = self.read({"name": "proxy", "state": state}, trainer=self.RUNNING)
        assert failed.side_car_failure == "container proxy ended with code 3: no such upstream"
        assert not failed.failed
        assert (
            self.read({"name": "copy", **self.ENDED}, trainer=self.RUNNING).side_car_failure == ""
        )

    def test_ended_side_car_keeps_the_pod_ready(self) -> None:
        copied = {"name": "copy", **self.ENDED}
        assert self.read(copied, trainer=self.RUNNING).ready
        assert not self.read(copied, trainer={**self.RUNNING, "ready": False}).ready
        assert not self.read(copied, trainer=self.ENDED).ready
        slow = {"name": "slow", **self.RUNNING, "ready": False}
        assert not self.read(copied, slow, trainer=self.RUNNING).ready
        assert not self.read(copied, trainer=self.RUNNING, initContainerStatuses=[self.LOOPS]).ready

    def test_readiness_gate_of_the_user_counts(self) -> None:
        statuses = [{"name": "trainer", **self.RUNNING}, {"name": "copy", **self.ENDED}]
        status = {"phase": "Running", "containerStatuses": statuses}
        gates = [{"conditionType": "example.com/network"}]
        stored = manifest(container(), container("copy"), status=status, readinessGates=gates)
        assert not project(stored).ready

    @pytest.mark.parametrize("trainer", [RUNNING, {"state": {"waiting": {}}}])
    def test_side_car_in_crash_loop_is_named(self, trainer: Json) -> None:
        looping = self.read(trainer=trainer, initContainerStatuses=[self.LOOPS])
        assert looping.waiting == "CrashLoopBackOff"
        assert (
            looping.waiting_message == "side car proxy keeps ending, last with code 2: no such host"
        )
        assert not any((looping.ready, looping.failed))
        job, pods = running_job()
        job = with_status(job, conditions=(), ready_replicas=0)
        stuck = [replace(each, ready=False, waiting=looping.waiting) for each in pods]
        status = plan(
            job, [replace(stuck[0], waiting_message=looping.waiting_message), stuck[1]], NOW
        )
        assert status.status.reason == "CrashLoopBackOff"
        assert "digits-0-0 is not ready: CrashLoopBackOff: side car proxy" in status.status.message
        assert not plan(stored(job, status), stuck, later(10_000)).decided, (
            "a crash loop does not restart the job"
        )


def test_injected_first_container_is_not_the_trainer() -> None:
    """GKE's Cloud Storage FUSE and service meshes inject containers."""
    status = {"phase": "Running", "containerStatuses": [terminated(0, "main")]}
    stored = manifest(container("main"), status=status)
    stored["spec"]["containers"].insert(0, container("injected"))
    assert project(stored).succeeded


def test_pod_that_failed_before_its_trainer_started() -> None:
    reason = "UnexpectedAdmissionError"
    pod = read(reason=reason, message="no")
    assert (pod.failed, pod.disrupted) == (True, False)
    failure = records.of_pod(fresh_job(), pod, NOW)
    assert (failure.reason, failure.message, failure.exit_code) == (reason, "no", None)


@pytest.mark.parametrize(
    ("reason", "class_"), [("UnexpectedAdmissionError", "Infrastructure"), ("", "Disruption")]
)
def test_pod_refused_by_its_node_and_then_deleted(reason: str, class_: str) -> None:
    """A finalizer, for example Kueue's, keeps a failed pod."""
    pod = read(reason=reason, metadata=deletion(T0, grace=0))
    assert records.of_pod(fresh_job(), pod, NOW).class_ == class_


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        ("ImagePullBackOff", "ImagePullBackOff"),
        ("CreateContainerConfigError", "CreateContainerConfigError"),
        ("ContainerCreating", ""),
        ("PodInitializing", ""),
    ],
)
def test_only_errors_count_as_waiting(waiting: str, expected: str) -> None:
    state = {"waiting": {"reason": waiting, "message": "why"}}
    pod = read({"name": "trainer", "state": state}, phase="Pending")
    assert (pod.waiting, pod.waiting_message) == (expected, "why" if expected else "")


def test_unschedulable_pod_has_the_reason() -> None:
    unfit = condition("PodScheduled", "False", reason="Unschedulable", message="no node")
    pod = read(phase="Pending", conditions=[unfit])
    assert (pod.waiting, pod.waiting_message) == ("Unschedulable", "no node")


@pytest.mark.parametrize(
    ("limits", "pod_limits", "limited"),
    [({"memory": "1Gi"}, {}, True), ({"cpu": 1}, {}, False), ({}, {"memory": "8Gi"}, True)],
)
def test_memory_limit_of_container_or_pod(limits: Json, pod_limits: Json, *, limited: bool) -> None:
    trainer = container(resources={"limits": limits})
    stored = manifest(trainer, resources={"limits": pod_limits})
    assert project(stored).memory_limited is limited


class TestInitContainer:
    """A failed init container keeps the trainer from starting."""

    def read(self, phase: str, **state: Json) -> PodState:
        trainer = {"name": "trainer", "state": {"waiting": {"reason": "PodInitializing"}}}
        init = [{"name": "fetch", "state": state}]
        return read(trainer, phase=phase, initContainerStatuses=init)

    def test_failed_init_container_fails_the_pod(self) -> None:
        pod = self.read("Failed", terminated={"exitCode": 3, "message": "no such bucket"})
        assert (pod.failed, pod.container) == (True, "fetch")
        failure = records.of_pod(fresh_job(), pod, NOW)
        assert (failure.container, failure.exit_code) == ("fetch", 3)
        assert failure.message == "no such bucket"

    def test_missing_image_of_an_init_container_is_named(self) -> None:
        pod = self.read("Pending", waiting={"reason": "ErrImagePull", "message": "no"})
        assert (pod.waiting, pod.container) == ("ErrImagePull", "fetch")

    @pytest.mark.parametrize(("phase", "code"), [("Pending", 0), ("Running", 1)])
    def test_completed_or_restarted_init_container_is_no_exit(self, phase: str, code: int) -> None:
        """Kubernetes restarts side cars among init containers."""
        pod = self.read(phase, terminated={"exitCode": code})
        assert (pod.exit, pod.container) == (None, "trainer")


class TestDisruption:
    def test_time_of_a_disruption(self) -> None:
        evicted, deleted = [target("EvictionByEvictionAPI")], deletion("2026-03-01T12:00:35Z")
        for conditions, metadata, at in (
            (evicted, {}, NOW),
            (evicted, deleted, NOW),
            ([], deleted, later(5)),
            ([], {}, None),
        ):
            assert read(conditions=conditions, metadata=metadata).disrupted_at == at

    @pytest.mark.parametrize(
        ("truth", "phase", "disrupted"),
        [
            ("True", "Failed", True),
            ("False", "Failed", False),
            ("Unknown", "Failed", False),
            ("True", "Running", False),
        ],
    )
    def test_disruption_target_condition(self, truth: str, phase: str, *, disrupted: bool) -> None:
        conditions = [{**target("PreemptionByScheduler"), "status": truth}]
        end = [terminated(137)] if phase == "Failed" else []
        assert read(*end, phase=phase, conditions=conditions).disrupted is disrupted

    def test_eviction_by_kueue(self) -> None:
        """Kueue sets a condition of its own and then deletes the pod."""
        message = "Preempted to accommodate a workload in the ClusterQueue"
        evicted = {**target("WorkloadEvicted", message=message), "type": "TerminationTarget"}
        conditions = [condition("DisruptionTarget", "False"), evicted]
        pod = read(terminated(143), conditions=conditions)
        assert (pod.disruption, pod.message) == ("WorkloadEvicted", message)
        assert (pod.disrupted_at, pod.disrupted) == (NOW, True)
        assert classes.of_pod(pod) == "Disruption"

    def test_termination_by_kueue_for_a_failed_node(self) -> None:
        """Kueue ends a pod that waits for a failed node."""
        reason, message = "UnschedulableOnAssignedNode", "Pod terminated due to node taint"
        ended = {**target(reason, message=message), "type": "TerminatedByKueue"}
        gated = condition("PodScheduled", "False", reason="SchedulingGated")
        pod = read(conditions=[gated, ended])
        assert (pod.disruption, pod.message) == (reason, message)
        assert classes.of_pod(pod) == "Disruption"

    @pytest.mark.parametrize(
        ("metadata", "member"),
        [
            ({"labels": {KUEUE_MANAGED: "true", KUEUE_GROUP: "g"}}, QueueMember("g")),
            ({"labels": {KUEUE_MANAGED: "true"}}, QueueMember("")),
            ({"labels": {KUEUE_MANAGED: "x", KUEUE_GROUP: "g"}}, None),
            ({"labels": {KUEUE_GROUP: "g"}, "finalizers": [KUEUE_MANAGED]}, None),
            ({}, None),
        ],
    )
    def test_queue_membership(self, metadata: Json, member: QueueMember | None) -> None:
        stored = manifest()
        stored["metadata"] |= metadata
        assert project(stored).queue == member

    @pytest.mark.parametrize(("managed", "placed"), [("true", T0), ("false", None)])
    def test_time_at_which_a_queued_pod_got_its_node(
        self, managed: str, placed: str | None
    ) -> None:
        scheduled = condition("PodScheduled", "True", lastTransitionTime=T0)
        stored = manifest(nodeName="node-a", status={"conditions": [scheduled]})
        stored["metadata"]["labels"] = {KUEUE_MANAGED: managed, KUEUE_GROUP: "g"}
        assert project(stored).placed == (datetime.fromisoformat(placed) if placed else None)
        del stored["spec"]["nodeName"]
        assert project(stored).placed is None

    @pytest.mark.parametrize(("retriable", "ends"), [("false", True), ("true", False), ("", False)])
    @pytest.mark.parametrize("finalizers", [[], ["a", KUEUE_MANAGED], ["a"], None])
    def test_retriable_annotation_and_finalizer(
        self, retriable: str, finalizers: list[str] | None, *, ends: bool
    ) -> None:
        stored = manifest()
        stored["metadata"] |= {
            "labels": {KUEUE_MANAGED: "true", KUEUE_GROUP: "g"},
            "annotations": {KUEUE_RETRIABLE: retriable},
            "finalizers": finalizers,
        }
        held = KUEUE_MANAGED in (finalizers or ())
        assert project(stored).queue == QueueMember("g", ends, held)

    @pytest.mark.parametrize(
        ("status", "metadata", "keeps"),
        [
            ({"phase": "Pending"}, {}, True),
            ({"phase": "Running"}, deletion(T0), True),
            ({"phase": "Succeeded"}, deletion(T0), True),
            ({"phase": "Failed"}, {}, False),
        ],
    )
    @pytest.mark.parametrize("node", ["node-1", ""])
    def test_pods_that_keep_their_places(
        self, status: Json, metadata: Json, node: str, *, keeps: bool
    ) -> None:
        stored = manifest(status=status)
        stored["spec"]["nodeName"] = node
        stored["metadata"] |= metadata
        stored["metadata"]["labels"][KUEUE_MANAGED] = "true"
        assert project(stored).keeps_place is (keeps and bool(node or not metadata))
        del stored["metadata"]["labels"][KUEUE_MANAGED]
        assert not project(stored).keeps_place

    @pytest.mark.parametrize(
        ("until", "disrupted"),
        [
            ("2026-03-01T12:00:20Z", True),
            ("2026-03-01T12:00:30Z", True),
            ("2026-03-01T12:00:31Z", False),
        ],
    )
    def test_deletion_counts_only_if_requested_before_the_end(
        self, until: str, *, disrupted: bool
    ) -> None:
        """deletionTimestamp is the end of the grace period."""
        pod = read(terminated(143), metadata=deletion(until))
        assert (pod.deleting, pod.failed, pod.disrupted) == (True, True, disrupted)

    @pytest.mark.parametrize(
        ("code", "reason", "disrupted"),
        [
            (143, "Error", True),
            (137, "Error", True),
            (137, "OOMKilled", False),
            (1, "Error", False),
        ],
    )
    def test_deletion_of_a_pod_with_a_finalizer(
        self, code: int, reason: str, *, disrupted: bool
    ) -> None:
        """The kubelet's last request replaces the time of the first one."""
        metadata = deletion("2026-03-01T12:00:01Z", grace=0)
        pod = read(terminated(code, reason=reason), metadata=metadata)
        assert (pod.failed, pod.disrupted) == (True, disrupted)

    @pytest.mark.parametrize("deleted", [True, False])
    def test_deletion_of_a_pod_without_a_reported_exit(self, *, deleted: bool) -> None:
        """Deleted before its container started, a pod only fails."""
        waiting = {"name": "trainer", "state": {"waiting": {"reason": "ContainerCreating"}}}
        pod = read(waiting, metadata={"deletionTimestamp": T0} if deleted else {})
        assert (pod.failed, pod.disrupted) == (True, deleted)

    def test_container_with_unknown_exit_is_a_disruption(self) -> None:
        """Containerd reports 255 for containers that a reboot ended."""
        assert classes.of_pod(read(terminated(255, reason="Unknown"))) == "Disruption"
        assert classes.of_pod(read(terminated(255, reason="Error"))) == "Application"

    OWN_FAULT = (
        'Usage of EmptyDir volume "scratch" exceeds the limit "64Mi". ',
        'Container trainer exceeded its local ephemeral storage limit "1Gi". ',
        "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ",
    )
    SHORTAGE = (
        "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, available: 9Mi. "
        "Container trainer was using 5Gi, request is 0, has larger consumption of "
        "ephemeral-storage. "
    )

    def read_evicted(self, message: str, *, code: int = 137) -> PodState:
        conditions = [target("TerminationByKubelet", message=message)]
        end = terminated(code)
        return read(end, conditions=conditions, reason="Evicted", message=message)

    @pytest.mark.parametrize("code", [0, 137])
    @pytest.mark.parametrize("message", OWN_FAULT)
    def test_eviction_for_own_storage_is_charged(self, message: str, code: int) -> None:
        pod = self.read_evicted(message, code=code)
        assert (pod.failed, pod.disrupted) == (True, False)
        failure = records.of_pod(fresh_job(), pod, NOW)
        assert (failure.reason, failure.class_) == ("StorageLimitExceeded", "Application")
        assert failure.message == message
        assert "sizeLimit" in advice.for_failure(failure, has_log=True)

    def test_eviction_for_own_storage_before_a_node_loss(self) -> None:
        pod = read(
            terminated(0, finishedAt="2026-03-01T12:00:20Z"),
            conditions=[target("DeletionByTaintManager", "2026-03-01T12:00:35Z")],
            metadata=self.DELETED_AT_35,
            reason="Evicted",
            message=self.OWN_FAULT[1],
        )
        assert (pod.succeeded, pod.failed, pod.disrupted) == (False, True, False)

    def test_eviction_for_the_nodes_storage_is_a_disruption(self) -> None:
        pod = self.read_evicted(self.SHORTAGE)
        assert pod.disrupted
        assert records.of_pod(fresh_job(), pod, NOW).reason == "TerminationByKubelet"

    DELETED_AT_35: ClassVar[Json] = deletion("2026-03-01T12:01:05Z")
    TAKEN: ClassVar[dict[str, Json]] = {
        "spot preemption": {"phase": "Failed", "reason": "Terminated", "condition": True},
        "node shutdown seen without a condition": {"phase": "Failed", "reason": "NodeShutdown"},
        "eviction by the kubelet": {"phase": "Failed", "reason": "Evicted", "condition": True},
        "eviction through the API": {"phase": "Succeeded", "condition": True, "deleted": True},
        "deletion": {"phase": "Succeeded", "deleted": True},
        "deletion, while a side car still runs": {"phase": "Running", "deleted": True},
    }

    def read_taken(self, how: Json, *, finished: str) -> PodState:
        return read(
            terminated(0, finishedAt=finished),
            phase=how["phase"],
            conditions=[target("x", "2026-03-01T12:00:35Z")] if how.get("condition") else [],
            metadata=self.DELETED_AT_35 if how.get("deleted") else {},
            reason=how.get("reason"),
        )

    @pytest.mark.parametrize("how", TAKEN)
    def test_exit_code_0_after_a_disruption_is_no_success(self, how: str) -> None:
        """Scripts that save on SIGTERM exit with 0 before they finish."""
        pod = self.read_taken(self.TAKEN[how], finished="2026-03-01T12:00:36Z")
        assert (pod.succeeded, pod.failed, pod.disrupted) == (False, True, True)
        assert classes.of_pod(pod) == "Disruption"

    @pytest.mark.parametrize("how", [name for name in TAKEN if "without" not in name])
    def test_completed_pod_is_not_disrupted(self, how: str) -> None:
        pod = self.read_taken(self.TAKEN[how], finished="2026-03-01T12:00:34Z")
        assert (pod.succeeded, pod.failed, pod.disrupted) == (True, False, False)

    @pytest.mark.parametrize("message", ["", *OWN_FAULT])
    def test_evicted_pod_that_is_deleted_later_failed(self, message: str) -> None:
        end = terminated(0, finishedAt="2026-03-01T12:00:34Z")
        pod = read(end, metadata=self.DELETED_AT_35, reason="Evicted", message=message)
        assert (pod.succeeded, pod.failed, pod.disrupted) == (False, True, not message)


UNREADABLE = ["x", "-1", "\u0663", "", "9" * 5000, None]


def marked(stored: Json, kind: str, key: str, value: str | None) -> Json:
    """Return the pod with a changed or removed label or annotation of the operator."""
    marks = stored["metadata"][kind]
    marks[f"ddp-operator.io/{key}"] = value
    if value is None:
        del marks[f"ddp-operator.io/{key}"]
    return stored


@pytest.mark.parametrize("value", [*UNREADABLE, "7"])
@pytest.mark.parametrize("label", ["replica-index", "attempt", "replacement", "job-name"])
def test_pod_is_identified_by_name_despite_its_labels(label: str, value: str | None) -> None:
    stored = marked(manifest(), "labels", label, value)
    assert project(stored) == project(manifest())
    assert job_of(stored) == fresh_job().key


@pytest.mark.parametrize("value", UNREADABLE)
@pytest.mark.parametrize("label", ["replica-index", "attempt"])
def test_unidentified_pod_is_deleted_if_the_job_owns_it(label: str, value: str | None) -> None:
    job, pods = running_job()
    stored = marked(manifest(metadata={"name": "a-copy"}), "labels", label, value)
    copy = project(stored)
    assert copy.owner_uid == job.uid
    assert plan(job, [*pods, copy], NOW).delete == (copy.key,)
    metadata = {"name": "mine", "ownerReferences": []}
    with pytest.raises(MalformedError, match="neither name nor labels fit job digits"):
        project(marked(manifest(metadata=metadata), "labels", label, value))


@pytest.mark.parametrize("value", UNREADABLE)
def test_unreadable_generation_is_0(value: str | None) -> None:
    stored = marked(manifest(), "annotations", "generation", "5")
    assert project(stored).generation == 5
    assert project(marked(stored, "annotations", "generation", value)).generation == 0


@pytest.mark.parametrize("name", ["digits-1-0-copy", "digits-01-0", "digits-1-0-r0", "digit-1-0"])
def test_foreign_name_leaves_the_labels_to_identify(name: str) -> None:
    assert project(manifest(metadata={"name": name})).identity == Identity(1, 3, 2)


@pytest.mark.parametrize("time", ["0000-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "soon", ""])
def test_invalid_time_hides_no_pod(time: str) -> None:
    end = terminated(3, finishedAt=time)
    metadata = {"deletionTimestamp": time}
    assert read(end, conditions=[target("x", time)], metadata=metadata).failed
    running = {"name": "trainer", "state": {"running": {"startedAt": time}}}
    assert not read(running, phase="Running").failed


_OUR_KEYS = st.sampled_from(
    [
        *("job-name", "replica-index", "attempt", "replacement", "serving", "spec-hash"),
        *("generation", "trainer-container", "restart-requested", "novelty"),
    ]
).map("ddp-operator.io/{}".format)
_MARKS = st.dictionaries(_OUR_KEYS, st.text(max_size=12))


@given(labels=_MARKS, annotations=_MARKS)
def test_no_label_or_annotation_hides_a_pod(labels: Json, annotations: Json) -> None:
    stored = manifest()
    stored["metadata"] |= {"labels": labels, "annotations": annotations}
    assert project(stored).identity == Identity(1, 3, 2)
    assert job_of(stored) == fresh_job().key


def test_pod_names_are_unique_and_host_names_follow_the_rank() -> None:
    one, other, replaced = Identity(1, 2), Identity(2, 1), Identity(1, 2, 3)
    assert one.pod_name("job") == one.host_name("job") == "job-2-1"
    assert other.pod_name("job") == "job-1-2"
    assert replaced.pod_name("job") == "job-2-1-r3"
    assert replaced.host_name("job") == "job-2-1"


class TestDescriptions:
    def record(self, pod: PodState) -> Failure:
        return records.of_pod(fresh_job(), pod, NOW)

    def test_description_of_an_exit_code(self) -> None:
        failure = self.record(ended(fresh_job(), 1, code=3, message="boom"))
        text = "pod digits-0-1 (node rank 1) exited with code 3 (Error) on node node-a: boom"
        assert records.describe(failure) == text
        long = self.record(ended(fresh_job(), 0, code=1, message="x" * 9999))
        assert len(long.message) == 1024

    @pytest.mark.parametrize(("code", "signal"), [(137, 9), (139, 11), (143, 15)])
    def test_description_of_a_signal(self, code: int, signal: int) -> None:
        failure = self.record(ended(fresh_job(), 0, code=code, reason="OOMKilled"))
        assert failure.signal == signal
        assert f"was killed by signal {signal} (OOMKilled)" in records.describe(failure)

    def test_description_of_a_disruption(self) -> None:
        failure = self.record(pod(fresh_job(), 0, deleting=True, node="node-a"))
        text = "pod digits-0-0 (node rank 0) was disrupted: Deleted on node node-a"
        assert records.describe(failure).startswith(text)


def test_pods_are_observed_by_node_rank_in_any_order() -> None:
    job = fresh_job(replicas=3, elastic={"minReplicas": 1, "maxReplicas": 3})
    pods = [pod(job, index) for index in (2, 0, 1)]
    assert observe(job, pods) == observe(job, pods[::-1])
    assert [*observe(job, pods).current] == [0, 1, 2]
