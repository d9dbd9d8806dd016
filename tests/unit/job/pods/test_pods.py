"""Tests of the projection of stored pods, and of the description of their end."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, ClassVar

import pytest
from ddp_operator.api.constants import KUEUE_GROUP, KUEUE_MANAGED, KUEUE_RETRIABLE
from ddp_operator.job.failure import classes, records
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.observed import observe
from ddp_operator.job.pods.projection import job_of, project
from ddp_operator.job.pods.state import Identity, PodState, QueueMember
from ddp_operator.ports import Key, MalformedError
from ddp_operator.views.job import advice
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
ENDING = {"deletionTimestamp": T0, "deletionGracePeriodSeconds": 30}


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


def test_created_pod_is_read_back() -> None:
    job = fresh_job()
    read = project(manifest())
    assert read.identity == Identity(1, 3, 2)
    assert read.key == Key("research", "digits-3-1-r2")
    assert (read.owner_uid, read.spec_hash) == (job.uid, job.spec_hash)
    assert (read.phase, read.serving, read.ready, read.scheduled) == ("Pending", True, False, False)
    assert not any((read.failed, read.succeeded, read.disrupted, read.deleting))
    assert job_of(manifest()) == job.key


def test_equal_strings_are_shared_between_pods() -> None:
    text = json.dumps(manifest(nodeName="node-a", status={"phase": "Running"}))
    one, other = project(json.loads(text)), project(json.loads(text))
    for name in ("owner_uid", "spec_hash", "phase", "node", "container"):
        assert getattr(one, name) is getattr(other, name)


def test_status_of_a_running_pod() -> None:
    running = {"name": "trainer", "state": {"running": {"startedAt": "2026-01-01T00:00:09Z"}}}
    status = {
        "phase": "Running",
        "conditions": [condition("Ready", "True")],
        "containerStatuses": [running],
    }
    read = project(manifest(status=status, nodeName="node-a"))
    assert (read.phase, read.ready, read.node) == ("Running", True, "node-a")
    assert read.started == datetime(2026, 1, 1, 0, 0, 9, tzinfo=UTC)


def test_fenced_pod_does_not_serve() -> None:
    stored = manifest()
    del stored["metadata"]["labels"]["ddp-operator.io/serving"]
    assert not project(stored).serving


def test_terminal_sequences_are_removed_from_messages() -> None:
    said = "\x1b[2J\x1b]0;mine\x07line 1\r\n\tline 2 \u202efdp.exe\x00\x9b31m é 界"
    status = {"phase": "Failed", "containerStatuses": [terminated(3, message=said)]}
    read = project(manifest(container(), status=status))
    assert read.exit is not None
    assert read.exit.message == "line 1 \n\tline 2 fdp.exe31m é 界"


@pytest.mark.parametrize("phase", ["Running", "Failed"])
def test_exit_of_the_trainer_decides_and_not_the_phase(phase: str) -> None:
    status = {
        "phase": phase,
        "containerStatuses": [
            {"name": "logs", "state": {"running": {}}},
            terminated(3, reason="Error", message="boom"),
        ],
    }
    read = project(manifest(container(), container("logs"), status=status))
    assert read.failed
    assert read.exit is not None
    assert (read.exit.code, read.exit.message) == (3, "boom")
    assert read.exit.finished == NOW


def test_failed_side_car_is_no_failed_pod() -> None:
    status = {"phase": "Running", "containerStatuses": [terminated(1, "logs")]}
    read = project(manifest(container(), container("logs"), status=status))
    assert not read.failed


class TestSideCar:
    """Side cars are other containers than the trainer; native ones are init containers."""

    def read(self, *side_cars: Json, trainer: Json, **status: Any) -> PodState:
        statuses = [{"name": "trainer", **trainer}, *side_cars]
        names = [container(each["name"]) for each in side_cars]
        stored = manifest(
            container(),
            *names,
            status={
                "phase": "Running",
                "conditions": [condition("Ready", "False")],
                "containerStatuses": statuses,
                **status,
            },
        )
        return project(stored)

    RUNNING: ClassVar[Json] = {"ready": True, "state": {"running": {}}}
    ENDED: ClassVar[Json] = {"ready": False, "state": {"terminated": {"exitCode": 0}}}
    LOOPS: ClassVar[Json] = {
        "name": "proxy",
        "ready": False,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 20s"}},
        "lastState": {"terminated": {"exitCode": 2, "message": "no such host"}},
    }

    def test_running_side_car_holds_the_pod(self) -> None:
        read = self.read({"name": "logs", **self.RUNNING}, trainer=self.ENDED)
        assert (read.held_by, read.succeeded) == ("logs", True)
        assert self.read({"name": "logs", **self.RUNNING}, trainer=self.RUNNING).held_by == ""

    def test_native_side_car_does_not_hold_the_pod(self) -> None:
        native = [{"name": "proxy", **self.RUNNING}]
        assert self.read(trainer=self.ENDED, initContainerStatuses=native).held_by == ""

    def test_ended_side_car_keeps_the_pod_ready(self) -> None:
        copied = {"name": "copy", **self.ENDED}
        assert self.read(copied, trainer=self.RUNNING).ready
        assert not self.read(copied, trainer={**self.RUNNING, "ready": False}).ready
        assert not self.read(copied, trainer=self.ENDED).ready
        slow = {"name": "slow", **self.RUNNING, "ready": False}
        assert not self.read(copied, slow, trainer=self.RUNNING).ready
        assert not self.read(copied, trainer=self.RUNNING, initContainerStatuses=[self.LOOPS]).ready

    def test_readiness_gate_of_the_user_counts(self) -> None:
        stored = manifest(
            container(),
            container("copy"),
            status={
                "phase": "Running",
                "containerStatuses": [
                    {"name": "trainer", **self.RUNNING},
                    {"name": "copy", **self.ENDED},
                ],
            },
            readinessGates=[{"conditionType": "example.com/network"}],
        )
        assert not project(stored).ready

    @pytest.mark.parametrize("trainer", [RUNNING, {"state": {"waiting": {}}}])
    def test_side_car_in_crash_loop_is_named(self, trainer: Json) -> None:
        read = self.read(trainer=trainer, initContainerStatuses=[self.LOOPS])
        assert read.waiting == "CrashLoopBackOff"
        assert read.waiting_message == "side car proxy keeps ending, last with code 2: no such host"
        assert not any((read.ready, read.failed))
        job, pods = running_job()
        job = with_status(job, conditions=(), ready_replicas=0)
        stuck = [replace(each, ready=False, waiting=read.waiting) for each in pods]
        status = plan(job, [replace(stuck[0], waiting_message=read.waiting_message), stuck[1]], NOW)
        assert status.status.reason == "CrashLoopBackOff"
        assert "digits-0-0 is not ready: CrashLoopBackOff: side car proxy" in status.status.message
        assert not plan(stored(job, status), stuck, later(10_000)).decided, (
            "a crash loop does not restart the job"
        )


def test_injected_first_container_is_not_the_trainer() -> None:
    """GKE's Cloud Storage FUSE and service meshes inject containers."""
    stored = manifest(
        container("main"),
        status={"phase": "Running", "containerStatuses": [terminated(0, "main")]},
    )
    stored["spec"]["containers"].insert(0, container("injected"))
    assert project(stored).succeeded


def test_pod_that_failed_before_its_trainer_started() -> None:
    read = project(
        manifest(status={"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no"})
    )
    assert read.failed
    assert not read.disrupted
    failure = records.of_pod(fresh_job(), read, NOW)
    assert (failure.reason, failure.message, failure.exit_code) == (
        "UnexpectedAdmissionError",
        "no",
        None,
    )


@pytest.mark.parametrize(("reason", "is_nodes"), [("UnexpectedAdmissionError", True), ("", False)])
def test_pod_refused_by_its_node_and_then_deleted(reason: str, *, is_nodes: bool) -> None:
    """A finalizer, for example Kueue's, keeps a failed pod."""
    stored = manifest(status={"phase": "Failed", "reason": reason})
    stored["metadata"] |= {
        "deletionTimestamp": "2026-03-01T12:00:00Z",
        "deletionGracePeriodSeconds": 0,
    }
    failure = records.of_pod(fresh_job(), project(stored), NOW)
    assert failure.class_ == ("Infrastructure" if is_nodes else "Disruption")


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
    status = {"phase": "Pending", "containerStatuses": [{"name": "trainer", "state": state}]}
    read = project(manifest(status=status, nodeName="node-a"))
    assert (read.waiting, read.waiting_message) == (expected, "why" if expected else "")


def test_unschedulable_pod_has_the_reason() -> None:
    unfit = condition("PodScheduled", "False", reason="Unschedulable", message="no node")
    read = project(manifest(status={"phase": "Pending", "conditions": [unfit]}))
    assert (read.waiting, read.waiting_message) == ("Unschedulable", "no node")


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
        waiting = {"waiting": {"reason": "PodInitializing"}}
        status = {
            "phase": phase,
            "containerStatuses": [{"name": "trainer", "state": waiting}],
            "initContainerStatuses": [{"name": "fetch", "state": state}],
        }
        return project(manifest(status=status))

    def test_failed_init_container_fails_the_pod(self) -> None:
        read = self.read("Failed", terminated={"exitCode": 3, "message": "no such bucket"})
        assert (read.failed, read.container) == (True, "fetch")
        failure = records.of_pod(fresh_job(), read, NOW)
        assert (failure.container, failure.exit_code) == ("fetch", 3)
        assert failure.message == "no such bucket"

    def test_missing_image_of_an_init_container_is_named(self) -> None:
        read = self.read("Pending", waiting={"reason": "ErrImagePull", "message": "no"})
        assert (read.waiting, read.container) == ("ErrImagePull", "fetch")

    def test_completed_init_container_is_no_exit(self) -> None:
        read = self.read("Pending", terminated={"exitCode": 0})
        assert (read.exit, read.container) == (None, "trainer")

    def test_restarted_native_side_car_has_not_failed(self) -> None:
        """Kubernetes restarts side cars among init containers."""
        read = self.read("Running", terminated={"exitCode": 1})
        assert (read.exit, read.container) == (None, "trainer")


class TestDisruption:
    def test_time_of_a_disruption(self) -> None:
        target = condition(
            "DisruptionTarget", "True", reason="EvictionByEvictionAPI", lastTransitionTime=T0
        )
        asked = {
            "deletionTimestamp": "2026-03-01T12:00:35Z",
            "deletionGracePeriodSeconds": 30,
        }
        for conditions, metadata, at in (
            ([target], {}, NOW),
            ([target], asked, NOW),
            ([], asked, later(5)),
            ([], {}, None),
        ):
            stored = manifest(status={"conditions": conditions}, metadata=metadata)
            assert project(stored).disrupted_at == at

    @pytest.mark.parametrize(
        ("truth", "disrupted"), [("True", True), ("False", False), ("Unknown", False)]
    )
    def test_disruption_target_condition(self, truth: str, *, disrupted: bool) -> None:
        target = condition("DisruptionTarget", truth, reason="PreemptionByScheduler")
        status = {
            "phase": "Failed",
            "conditions": [target],
            "containerStatuses": [terminated(137)],
        }
        assert project(manifest(status=status)).disrupted is disrupted

    def test_eviction_by_kueue(self) -> None:
        """Kueue sets a condition of its own and then deletes the pod."""
        said = "Preempted to accommodate a workload in the ClusterQueue"
        evicted = condition(
            "TerminationTarget", "True", reason="WorkloadEvicted", lastTransitionTime=T0
        )
        conditions = [condition("DisruptionTarget", "False"), {**evicted, "message": said}]
        status = {
            "phase": "Failed",
            "conditions": conditions,
            "containerStatuses": [terminated(143)],
        }
        read = project(manifest(status=status))
        assert (read.disruption, read.message, read.disrupted_at) == ("WorkloadEvicted", said, NOW)
        assert read.disrupted
        assert classes.of_pod(read) == "Disruption"

    def test_termination_by_kueue_for_a_failed_node(self) -> None:
        """Kueue ends a pod that waits for a failed node."""
        why = {
            "reason": "UnschedulableOnAssignedNode",
            "message": "Pod terminated by Kueue NodeController due to node taint",
        }
        ended = {**condition("TerminatedByKueue", "True", lastTransitionTime=T0), **why}
        gated = condition("PodScheduled", "False", reason="SchedulingGated")
        read = project(manifest(status={"phase": "Failed", "conditions": [gated, ended]}))
        assert (read.disruption, read.message) == (why["reason"], why["message"])
        assert classes.of_pod(read) == "Disruption"

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
            ({"phase": "Running"}, ENDING, True),
            ({"phase": "Succeeded"}, ENDING, True),
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

    def test_announced_disruption_has_not_happened_yet(self) -> None:
        target = condition("DisruptionTarget", "True", reason="PreemptionByScheduler")
        read = project(manifest(status={"phase": "Running", "conditions": [target]}))
        assert not read.disrupted

    @pytest.mark.parametrize(
        ("requested", "disrupted"),
        [("2026-03-01T11:59:50Z", True), (T0, True), ("2026-03-01T12:00:01Z", False)],
    )
    def test_deletion_counts_only_if_requested_before_the_end(
        self, requested: str, *, disrupted: bool
    ) -> None:
        """deletionTimestamp is the end of the grace period."""
        due = datetime.fromisoformat(requested).timestamp() + 30
        read = project(
            manifest(
                status={"phase": "Failed", "containerStatuses": [terminated(143)]},
                metadata={
                    "deletionTimestamp": datetime.fromtimestamp(due, UTC).isoformat(),
                    "deletionGracePeriodSeconds": 30,
                },
            )
        )
        assert read.deleting
        assert read.failed
        assert read.disrupted is disrupted

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
        ended = terminated(code)
        ended["state"]["terminated"]["reason"] = reason
        read = project(
            manifest(
                status={"phase": "Failed", "containerStatuses": [ended]},
                metadata={
                    "deletionTimestamp": "2026-03-01T12:00:01Z",
                    "deletionGracePeriodSeconds": 0,
                },
            )
        )
        assert (read.failed, read.disrupted) == (True, disrupted)

    @pytest.mark.parametrize("deleted", [True, False])
    def test_deletion_of_a_pod_without_a_reported_exit(self, *, deleted: bool) -> None:
        """Deleted before its container started, a pod only fails."""
        metadata = {"deletionTimestamp": T0} if deleted else {}
        waiting = {"name": "trainer", "state": {"waiting": {"reason": "ContainerCreating"}}}
        status = {"phase": "Failed", "containerStatuses": [waiting]}
        read = project(manifest(status=status, metadata=metadata))
        assert (read.failed, read.disrupted) == (True, deleted)

    def test_container_with_unknown_exit_is_a_disruption(self) -> None:
        """Containerd reports 255 for containers that a reboot ended."""
        lost = terminated(255, reason="Unknown")
        read = project(manifest(status={"phase": "Failed", "containerStatuses": [lost]}))
        assert classes.of_pod(read) == "Disruption"
        own = terminated(255, reason="Error")
        read = project(manifest(status={"phase": "Failed", "containerStatuses": [own]}))
        assert classes.of_pod(read) == "Application"

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
        target = condition("DisruptionTarget", "True", reason="TerminationByKubelet")
        status = {
            "phase": "Failed",
            "reason": "Evicted",
            "message": message,
            "conditions": [{**target, "message": message}],
            "containerStatuses": [terminated(code)],
        }
        return project(manifest(status=status))

    @pytest.mark.parametrize("code", [0, 137])
    @pytest.mark.parametrize("message", OWN_FAULT)
    def test_eviction_for_own_storage_is_charged(self, message: str, code: int) -> None:
        read = self.read_evicted(message, code=code)
        assert (read.failed, read.disrupted) == (True, False)
        failure = records.of_pod(fresh_job(), read, NOW)
        assert (failure.reason, failure.class_) == ("StorageLimitExceeded", "Application")
        assert failure.message == message
        assert "sizeLimit" in advice.for_failure(failure, has_log=True)

    def test_eviction_for_own_storage_before_a_node_loss(self) -> None:
        since = "2026-03-01T12:00:35Z"
        why = "DeletionByTaintManager"
        target = condition("DisruptionTarget", "True", reason=why, lastTransitionTime=since)
        status = {
            "phase": "Failed",
            "reason": "Evicted",
            "message": self.OWN_FAULT[1],
            "conditions": [target],
            "containerStatuses": [terminated(0, finishedAt="2026-03-01T12:00:20Z")],
        }
        read = project(manifest(status=status, metadata=self.ASKED_AT_35))
        assert (read.succeeded, read.failed, read.disrupted) == (False, True, False)

    def test_eviction_for_the_nodes_storage_is_a_disruption(self) -> None:
        read = self.read_evicted(self.SHORTAGE)
        assert read.disrupted
        assert records.of_pod(fresh_job(), read, NOW).reason == "TerminationByKubelet"

    ASKED_AT_35: ClassVar[Json] = {
        "deletionTimestamp": "2026-03-01T12:01:05Z",
        "deletionGracePeriodSeconds": 30,
    }
    TAKEN: ClassVar[dict[str, Json]] = {
        "spot preemption": {"phase": "Failed", "reason": "Terminated", "told": True},
        "node shutdown seen without a condition": {"phase": "Failed", "reason": "NodeShutdown"},
        "eviction by the kubelet": {"phase": "Failed", "reason": "Evicted", "told": True},
        "eviction through the API": {"phase": "Succeeded", "told": True, "asked": True},
        "deletion": {"phase": "Succeeded", "asked": True},
        "deletion, while a side car still runs": {"phase": "Running", "asked": True},
    }

    def read_taken(self, how: Json, *, finished: str) -> PodState:
        since = "2026-03-01T12:00:35Z"
        target = condition("DisruptionTarget", "True", reason="x", lastTransitionTime=since)
        status = {
            "phase": how["phase"],
            "reason": how.get("reason"),
            "conditions": [target] if how.get("told") else [],
            "containerStatuses": [terminated(0, finishedAt=finished)],
        }
        metadata = self.ASKED_AT_35 if how.get("asked") else {}
        return project(manifest(status=status, metadata=metadata))

    @pytest.mark.parametrize("how", TAKEN)
    def test_exit_code_0_after_a_disruption_is_no_success(self, how: str) -> None:
        """Scripts that save on SIGTERM exit with 0 before they finish."""
        read = self.read_taken(self.TAKEN[how], finished="2026-03-01T12:00:36Z")
        assert (read.succeeded, read.failed, read.disrupted) == (False, True, True)
        assert classes.of_pod(read) == "Disruption"

    @pytest.mark.parametrize("how", [name for name in TAKEN if "without" not in name])
    def test_completed_pod_is_not_disrupted(self, how: str) -> None:
        read = self.read_taken(self.TAKEN[how], finished="2026-03-01T12:00:34Z")
        assert (read.succeeded, read.failed, read.disrupted) == (True, False, False)

    @pytest.mark.parametrize("message", ["", *OWN_FAULT])
    def test_evicted_pod_that_is_deleted_later_failed(self, message: str) -> None:
        ended = terminated(0, finishedAt="2026-03-01T12:00:34Z")
        status = {"phase": "Failed", "reason": "Evicted", "containerStatuses": [ended]}
        metadata = self.ASKED_AT_35
        read = project(manifest(status={**status, "message": message}, metadata=metadata))
        assert (read.succeeded, read.failed, read.disrupted) == (False, True, not message)


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
def test_unidentified_pod_of_a_job_is_deleted(label: str, value: str | None) -> None:
    job, pods = running_job()
    stored = marked(manifest(metadata={"name": "a-copy"}), "labels", label, value)
    copy = project(stored)
    assert copy.owner_uid == job.uid
    assert plan(job, [*pods, copy], NOW).delete == (copy.key,)


@pytest.mark.parametrize("value", UNREADABLE)
@pytest.mark.parametrize("label", ["replica-index", "attempt"])
def test_unidentified_pod_without_owner_is_no_pod_of_a_job(label: str, value: str | None) -> None:
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
    target = condition("DisruptionTarget", "True", reason="x", lastTransitionTime=time)
    ended = [terminated(3, finishedAt=time)]
    status = {"phase": "Failed", "conditions": [target], "containerStatuses": ended}
    read = project(manifest(status=status, metadata={"deletionTimestamp": time}))
    assert read.failed
    running = {"name": "trainer", "state": {"running": {"startedAt": time}}}
    project(manifest(status={"phase": "Running", "containerStatuses": [running]}))


_OUR_KEYS = st.sampled_from(
    [
        "job-name",
        "replica-index",
        "attempt",
        "replacement",
        "serving",
        "spec-hash",
        "generation",
        "trainer-container",
        "restart-requested",
        "novelty",
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


class TestWords:
    def test_description_of_an_exit_code(self) -> None:
        job = fresh_job()
        said = records.describe(
            records.of_pod(fresh_job(), ended(job, 1, code=3, message="boom", node="node-a"), NOW)
        )
        assert (
            said == "pod digits-0-1 (node rank 1) exited with code 3 (Error) on node node-a: boom"
        )

    @pytest.mark.parametrize(("code", "signal"), [(137, 9), (139, 11), (143, 15)])
    def test_description_of_a_signal(self, code: int, signal: int) -> None:
        failure = records.of_pod(
            fresh_job(), ended(fresh_job(), 0, code=code, reason="OOMKilled"), NOW
        )
        assert failure.signal == signal
        assert f"was killed by signal {signal} (OOMKilled)" in records.describe(failure)

    def test_description_of_a_disruption(self) -> None:
        gone = pod(fresh_job(), 0, deleting=True, node="node-a")
        said = records.describe(records.of_pod(fresh_job(), gone, NOW))
        assert said.startswith("pod digits-0-0 (node rank 0) was disrupted: Deleted on node node-a")

    def test_long_message_is_cut(self) -> None:
        failure = records.of_pod(
            fresh_job(), ended(fresh_job(), 0, code=1, message="x" * 9999), NOW
        )
        assert len(failure.message) == 1024


def test_pods_are_observed_by_node_rank_in_any_order() -> None:
    job = fresh_job(replicas=3, elastic={"minReplicas": 1, "maxReplicas": 3})
    pods = [pod(job, index) for index in (2, 0, 1)]
    assert observe(job, pods) == observe(job, pods[::-1])
    assert [*observe(job, pods).current] == [0, 1, 2]
