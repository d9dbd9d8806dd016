"""A reconcile makes the writes of the plan, in an order that is safe if the operator crashes."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from ddp_operator.engine.job_cache import JobCache
from ddp_operator.engine.metrics import Metrics
from ddp_operator.engine.pod_settings import PodSettings
from ddp_operator.engine.reconciler import Reconciler
from ddp_operator.job.pods.fabrics import SideCars
from ddp_operator.job.pods.state import Identity
from ddp_operator.job.status.progress import Report
from ddp_operator.ports import (
    AlreadyExistsError,
    ClusterError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    Key,
    NotFoundError,
    NotServedError,
    UnavailableError,
)
from ddp_protocol.progress import TrainerStatus

from tests.good_manifests import container, template
from tests.unit.engine.fakes import SETTINGS, FakeCluster

KEY = Key("default", "train")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
READY = {
    "phase": "Running",
    "conditions": [{"type": "Ready", "status": "True"}],
}
CRASHED = {
    "phase": "Failed",
    "containerStatuses": [
        {
            "name": "trainer",
            "state": {
                "terminated": {
                    "exitCode": 1,
                    "reason": "Error",
                    "finishedAt": "2026-01-01T00:00:00Z",
                }
            },
        }
    ],
}


DRANET = {"accelerator": {"type": "nvidia-b200", "count": 8, "network": "dranet"}}
A4X = {"accelerator": {"type": "nvidia-gb300", "count": 4, "network": "auto"}}


def job(**spec: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "trainer", "image": "x"}]}}
    return {
        "apiVersion": "ddp-operator.io/v1alpha1",
        "kind": "DDPJob",
        "metadata": {
            "namespace": "default",
            "name": "train",
            "uid": "u1",
            "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"replicas": 2, "template": template, **spec},
    }


class World:
    """A reconciler over a fake cluster, with a clock that the test moves."""

    def __init__(self, settings: PodSettings = SETTINGS) -> None:
        self.cluster = FakeCluster()
        self.jobs = JobCache()
        self.now = NOW
        self.metrics = Metrics()
        self.reconciler = Reconciler(
            self.cluster,
            self.jobs,
            settings=settings,
            clock=lambda: self.now,
            metrics=self.metrics,
        )

    def apply(self, manifest: Mapping[str, Any]) -> None:
        self.jobs.put(self.cluster.store_job(manifest))

    async def start(self, **spec: Any) -> None:
        """Store a job and reconcile once, so that its pods exist."""
        self.apply(job(**spec))
        await self.reconcile()

    def make_pods_ready(self) -> None:
        """Report both pods of the first attempt as ready."""
        for index in range(2):
            self.cluster.set_pod_status(f"train-0-{index}", READY)

    async def reconcile(self) -> list[str]:
        """Reconcile once; return the calls that it made."""
        before = len(self.cluster.calls)
        await self.reconciler.reconcile(KEY)
        return self.cluster.calls[before:]

    async def reconcile_fails(self, error: type[ClusterError]) -> None:
        """Reconcile once, and check that it raises this error."""
        with pytest.raises(error):
            await self.reconcile()

    async def reconcile_until_quiet(self) -> None:
        """Reconcile like a watch, which also reports the operator's own writes."""
        for _ in range(5):
            if not await self.reconcile():
                return
        raise AssertionError("each reconcile makes further writes")

    @property
    def status(self) -> dict[str, Any]:
        stored: dict[str, Any] = self.cluster.jobs[KEY]["status"]
        return stored


async def test_new_job_takes_its_pods_one_service_and_one_status(world: World) -> None:
    world.apply(job())
    calls = await world.reconcile()
    assert sorted(calls) == [
        "create_pod train-0-0",
        "create_pod train-0-1",
        "create_service train",
        "patch_status train",
    ]
    assert calls[-1] == "patch_status train"
    assert await world.reconcile() == []


@pytest.mark.parametrize("marks", ["labels", "annotations"])
@pytest.mark.parametrize("of_override", [False, True])
async def test_operator_labels_in_a_template_are_ignored(
    world: World, marks: str, *, of_override: bool
) -> None:
    keys = [
        "generation",
        "attempt",
        "replica-index",
        "replacement",
        "serving",
        "job-name",
        "token-key",
    ]
    patch = {"metadata": {marks: {f"ddp-operator.io/{key}": "abc" for key in keys}}}
    if of_override:
        world.apply(job(overrides=[{"indexes": ["1"], "template": patch}]))
    else:
        world.apply(job(template=template(container()) | patch))
    for _ in range(3):
        await world.reconcile()
        world.now += timedelta(minutes=1)
    assert {key.name for key in world.cluster.pods} == {"train-0-0", "train-0-1"}
    assert len(world.cluster.pods_of(KEY)) == 2
    plain = world.cluster.pods[Key("default", "train-0-0")]["metadata"][marks]
    changed = world.cluster.pods[Key("default", "train-0-1")]["metadata"][marks]
    assert changed.keys() == plain.keys()
    assert "abc" not in changed.values()


async def test_network_policy_is_created_before_pods(world: World) -> None:
    world.apply(job(isolation="Job"))
    assert await world.reconcile() == [
        "patch_status train",
        "apply NetworkPolicy train",
        "create_service train",
        "create_pod train-0-0",
        "create_pod train-0-1",
        "patch_status train",
    ]
    assert world.status["bookkeeping"]["isolation"] == "Job"
    [owner] = world.cluster.applied["NetworkPolicy"][KEY]["metadata"]["ownerReferences"]
    assert owner["uid"] == "u1"
    assert await world.reconcile() == []


async def test_policy_by_the_operators_default_is_created_before_pods() -> None:
    world = World(replace(SETTINGS, isolate=True))
    world.apply(job())
    calls = await world.reconcile()
    assert calls[1:3] == ["apply NetworkPolicy train", "create_service train"]
    assert await world.reconcile() == []


async def test_job_in_the_operators_namespace_gets_no_pods() -> None:
    access = replace(SETTINGS.access, operator_namespace=KEY.namespace)
    world = World(replace(SETTINGS, access=access))
    world.apply(job())
    await world.reconcile_fails(ForbiddenError)
    assert world.cluster.pods == {}
    assert world.status["reason"] == "PodsForbidden"
    assert world.status["message"].startswith("metadata.namespace: the operator runs in this")


@pytest.mark.parametrize("kind", [AlreadyExistsError, ForbiddenError])
async def test_refused_network_policy_prevents_pods(world: World, kind: type[ClusterError]) -> None:
    world.apply(job(isolation="Job"))
    world.cluster.refuse["apply NetworkPolicy"] = kind("not this policy")
    await world.reconcile_fails(kind)
    assert world.cluster.pods == {}
    assert world.status["message"] == "not this policy"
    assert world.status["bookkeeping"]["isolation"] == "Changing"
    world.cluster.refuse.clear()
    await world.reconcile()
    assert len(world.cluster.pods) == 2
    assert world.status["bookkeeping"]["isolation"] == "Job"


async def test_isolation_of_a_running_job_changes_only_the_policy(world: World) -> None:
    manifest = job()
    world.apply(manifest)
    await world.reconcile()
    world.make_pods_ready()
    await world.reconcile()
    for isolation, call in (
        ("Job", "apply NetworkPolicy train"),
        ("None", "delete_network_policy train"),
    ):
        stored = world.cluster.jobs[KEY]
        stored["spec"]["isolation"] = isolation
        world.apply(stored)
        assert await world.reconcile() == ["patch_status train", call, "patch_status train"]
        assert world.status["phase"] == "Running"
    assert world.cluster.applied["NetworkPolicy"] == {}


async def test_pods_that_run_are_recorded_while_the_policy_is_refused(world: World) -> None:
    await world.start()
    stored = world.cluster.jobs[KEY]
    stored["spec"]["isolation"] = "Job"
    world.apply(stored)
    world.cluster.refuse["apply NetworkPolicy"] = ForbiddenError("not this policy")
    world.make_pods_ready()
    for _ in range(3):
        await world.reconcile_fails(ForbiddenError)
        assert (world.status["phase"], world.status["ready"]) == ("Running", "2/2")
        assert (world.status["reason"], world.status["message"]) == (
            "PodsForbidden",
            "not this policy",
        )
        assert world.status["bookkeeping"]["isolation"] == "Changing"
    assert [event.reason for event in world.cluster.events if event.warning] == ["PodsForbidden"]
    world.cluster.refuse.clear()
    await world.reconcile_until_quiet()
    assert (world.status["phase"], world.status["reason"]) == ("Running", "PodsReady")
    assert world.status["bookkeeping"]["isolation"] == "Job"


@pytest.mark.parametrize(
    "error",
    [
        UnavailableError("a webhook is away", status=500),
        ForbiddenError("exceeded quota", status=403),
        ConflictError("the quota has changed", status=409),
        NotFoundError("there is no such namespace", status=404),
    ],
    ids=lambda error: str(error.status),
)
async def test_spare_that_cannot_be_created_is_tried_each_minute(
    world: World, monkeypatch: pytest.MonkeyPatch, error: ClusterError
) -> None:
    create = world.cluster.create_pod

    async def create_all_but_the_spare(manifest: Mapping[str, Any]) -> None:
        if manifest["metadata"]["name"] == "train-0-2":
            world.cluster.calls.append("create_pod train-0-2")
            raise error
        await create(manifest)

    monkeypatch.setattr(world.cluster, "create_pod", create_all_but_the_spare)
    await world.start(spares=1, restart={"scope": "Pod"})
    world.make_pods_ready()
    calls = await world.reconcile()
    assert calls == ["patch_status train", "create_pod train-0-2", "patch_status train"]
    assert (world.status["phase"], world.status["reason"]) == ("Running", "PodsReady")
    for _ in range(120):
        world.now += timedelta(seconds=1)
        calls += await world.reconcile()
    assert calls.count("create_pod train-0-2") == 3
    warnings = [event for event in world.cluster.events if event.warning]
    assert [event.reason for event in warnings] == ["SparesRefused"] * 3
    assert error.message in warnings[0].message
    monkeypatch.undo()
    world.now += timedelta(seconds=60)
    await world.reconcile_until_quiet()
    assert len(world.cluster.pods) == 3


async def test_spares_of_an_earlier_spec_are_not_created(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.start(spares=1, restart={"scope": "Pod"})
    world.make_pods_ready()
    patch_status = world.cluster.patch_status

    async def patch_and_suspend(*args: Any, **options: Any) -> Any:
        answer = await patch_status(*args, **options)
        manifest = job(spares=1, restart={"scope": "Pod"}, suspend=True)
        manifest["metadata"]["generation"] = 2
        world.apply(manifest | {"status": world.status})
        monkeypatch.undo()
        return answer

    monkeypatch.setattr(world.cluster, "patch_status", patch_and_suspend)
    assert await world.reconcile() == ["patch_status train"]
    await world.reconcile_until_quiet()
    assert (world.status["phase"], world.cluster.pods) == ("Suspended", {})


async def test_restart_is_recorded_before_pods_are_deleted(world: World) -> None:
    await world.start()
    world.cluster.set_pod_status("train-0-1", CRASHED)
    calls = await world.reconcile()
    assert calls[0] == "patch_status train"
    assert calls[1:-1] == ["delete_pods train-0-0 train-0-1"]
    assert world.status["attempt"] == 1
    calls = await world.reconcile()
    assert set(calls[:-1]) == {
        "create_pod train-1-0",
        "create_pod train-1-1",
        "create_service train",
    }
    assert world.status["restarts"] == 1
    assert world.cluster.graces == {Key("default", f"train-0-{i}"): 15 for i in (0, 1)}


async def test_job_changed_meanwhile_gets_no_further_writes(world: World) -> None:
    await world.start()
    world.cluster.set_pod_status("train-0-1", CRASHED)
    world.cluster.store_job(world.cluster.jobs[KEY])  # another write; the cache has the old version
    before = len(world.cluster.calls)
    with pytest.raises(ConflictError):
        await world.reconciler.reconcile(KEY)
    assert world.cluster.calls[before:] == ["patch_status train"]


async def test_invalid_template_fails_the_job_with_the_servers_message(world: World) -> None:
    world.cluster.refuse["create_pod"] = InvalidError(
        "spec.containers[0].image: Required value", permanent=True
    )
    world.apply(job())
    calls = await world.reconcile()
    # One refused pod is enough.
    assert [call for call in calls if call.startswith("create_pod")] == ["create_pod train-0-0"]
    assert (world.status["phase"], world.status["reason"]) == ("Failed", "InvalidPodTemplate")
    assert "image: Required value" in world.status["message"]


@pytest.mark.parametrize(
    "refusal",
    [
        ForbiddenError("a quota says no", status=403),
        InvalidError("a webhook says no", status=400),
        InvalidError("an admission policy says no", status=422),
    ],
    ids=lambda refusal: refusal.message,
)
async def test_denied_pod_is_in_the_status_and_retried(world: World, refusal: ClusterError) -> None:
    world.cluster.refuse["create_pod"] = refusal
    world.apply(job())
    await world.reconcile_fails(type(refusal))
    assert (world.status["phase"], world.status["reason"]) == ("Pending", "PodsForbidden")
    assert "says no" in world.status["message"]
    warnings = [event.reason for event in world.cluster.events if event.warning]
    await world.reconcile_fails(type(refusal))
    assert warnings == ["PodsForbidden"]
    assert [event.reason for event in world.cluster.events if event.warning] == warnings
    world.cluster.refuse.clear()
    await world.reconcile()
    assert set(world.cluster.pods) == {Key("default", f"train-0-{i}") for i in range(2)}
    assert world.status["reason"] == "PodsStarting"


async def test_template_that_was_accepted_before_does_not_fail_the_job(world: World) -> None:
    """A field may be refused later, by a policy that names it or by a server that was updated."""
    await world.start()
    world.cluster.set_pod_status("train-0-1", CRASHED)
    world.cluster.refuse["create_pod"] = InvalidError("spec.hostNetwork", permanent=True)
    with pytest.raises(InvalidError):
        await world.reconcile_until_quiet()
    assert (world.status["phase"], world.status["reason"]) == ("Restarting", "PodsForbidden")
    world.cluster.refuse.clear()
    await world.reconcile()
    assert {key.name for key in world.cluster.pods} >= {"train-1-0", "train-1-1"}


async def test_older_crd_causes_no_loop(world: World) -> None:
    world.cluster.lost_fields = {"completedIndexes", "bookkeeping", "ready"}
    await world.start(restart={"scope": "Pod"})
    world.cluster.set_pod_status("train-0-0", READY)
    world.cluster.set_pod_status("train-0-1", READY)
    world.now += timedelta(seconds=60)
    await world.reconcile()
    assert world.status["phase"] == "Running"
    version = world.cluster.jobs[KEY]["metadata"]["resourceVersion"]
    for _ in range(3):
        world.now += timedelta(seconds=60)
        assert await world.reconcile() == ["patch_status train"]
    assert world.cluster.jobs[KEY]["metadata"]["resourceVersion"] == version


PROBLEMS: dict[str, tuple[dict[str, Any], str, str]] = {
    "InvalidSpec": ({"replicas": "many"}, "spec.replicas: ", "correct the spec"),
    "NewerThanOperator": ({"novelty": 0}, "spec.novelty: unknown field", "upgrade the operator"),
}
"""By reason: an edit, and parts of its message. A new CRD also gives the defaults of its new fields
to running jobs."""


@pytest.mark.parametrize("reason", PROBLEMS)
async def test_job_continues_with_its_last_valid_spec(world: World, reason: str) -> None:
    await world.start()
    edit, *texts = PROBLEMS[reason]
    world.apply(job(**edit) | {"status": world.status})
    await world.reconcile()
    assert (world.status["phase"], world.status["reason"]) == ("Pending", reason)
    assert all(text in world.status["message"] for text in texts)
    assert await world.reconcile() == []
    world.cluster.set_pod_status("train-0-1", CRASHED)
    await world.reconcile_until_quiet()
    assert "train-1-0" in {key.name for key in world.cluster.pods}, "failures are handled"
    assert world.status["reason"] == reason
    assert [event.reason for event in world.cluster.events].count(reason) == 1
    world.apply(job() | {"status": world.status})
    await world.reconcile_until_quiet()
    assert world.status["reason"] != reason


@pytest.mark.parametrize("reason", PROBLEMS)
async def test_restarted_operator_leaves_a_job_with_a_problem_as_it_is(
    world: World, reason: str
) -> None:
    await world.start()
    pods = set(world.cluster.pods)
    edit, *texts = PROBLEMS[reason]
    world.jobs.remove(KEY)
    world.apply(job(**edit, restart={"scope": "InPlace"}) | {"status": world.status})
    world.cluster.set_pod_status("train-0-1", CRASHED)
    await world.reconcile()
    assert (world.status["phase"], world.status["reason"]) == ("Pending", reason)
    assert all(text in world.status["message"] for text in texts)
    assert await world.reconcile() == []
    assert set(world.cluster.pods) == pods
    assert [event.reason for event in world.cluster.events if event.warning] == [reason]
    world.apply(job() | {"status": world.status})
    await world.reconcile_until_quiet()
    assert "train-1-0" in {key.name for key in world.cluster.pods}


async def test_suspend_applies_in_an_invalid_spec(world: World) -> None:
    await world.start()
    world.apply(job(replicas="many", suspend=True) | {"status": world.status})
    await world.reconcile_until_quiet()
    assert world.status["phase"] == "Suspended"
    assert not world.cluster.pods
    world.apply(job(suspend=True) | {"status": world.status})
    await world.reconcile()
    assert world.status["reason"] == "Suspended", "the problem is gone"


async def test_denied_deletion_is_retried_for_failed_jobs(world: World) -> None:
    await world.start()
    world.apply(job(activeDeadlineSeconds=1) | {"status": world.status})
    world.now += timedelta(seconds=2)
    world.cluster.refuse["delete_pod"] = ForbiddenError("a webhook says no", status=403)
    await world.reconcile_fails(ForbiddenError)
    assert world.status["reason"] == "DeadlineExceeded"
    world.cluster.refuse.clear()
    await world.reconcile()
    assert not world.cluster.pods


async def test_denied_deletion_does_not_change_the_outcome(world: World) -> None:
    await world.start(cleanPodPolicy="All", restart={"maxRestarts": 0})
    world.cluster.set_pod_status("train-0-1", CRASHED)
    world.cluster.refuse["delete_pod"] = ForbiddenError("a webhook says no", status=403)
    await world.reconcile_fails(ForbiddenError)
    conditions = world.status["conditions"]
    assert world.status["reason"] == "MaxRestartsExceeded"
    await world.reconcile_fails(ForbiddenError)
    assert world.status["conditions"] == conditions
    assert world.cluster.events[-1].message == "a webhook says no"
    world.cluster.refuse.clear()
    await world.reconcile_until_quiet()
    assert not world.cluster.pods


async def test_quota_for_few_pods_causes_few_refusals(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = world.cluster.create_pod

    async def create_within_quota(manifest: Mapping[str, Any]) -> None:
        await asyncio.sleep(0)  # requests overlap
        if len(world.cluster.pods) >= 3:
            world.cluster.refuse["create_pod"] = ForbiddenError("exceeded quota: three-pods")
        await create(manifest)

    monkeypatch.setattr(world.cluster, "create_pod", create_within_quota)
    world.apply(job(replicas=500))
    await world.reconcile_fails(ForbiddenError)
    assert len(world.cluster.pods) == 3
    creations = [call for call in world.cluster.calls if call.startswith("create_pod")]
    assert len(creations) <= 3 + 4, "as many refused as created, and one"


@pytest.mark.parametrize(
    "refusal", [ForbiddenError("exceeded quota"), InvalidError("a policy says no", status=422)]
)
async def test_status_is_written_although_a_pod_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch, refusal: ClusterError
) -> None:
    create = world.cluster.create_pod

    async def create_but_the_last(manifest: Mapping[str, Any]) -> None:
        if manifest["metadata"]["name"].endswith("-3"):
            raise refusal
        await create(manifest)

    monkeypatch.setattr(world.cluster, "create_pod", create_but_the_last)
    world.apply(job(replicas=4, activeDeadlineSeconds=60))
    for seconds in (0, 30, 59):
        world.now = NOW + timedelta(seconds=seconds)
        await world.reconcile_fails(type(refusal))
        assert world.status["startTime"] == "2026-01-01T00:00:00Z"
        [gap] = [gap for gap in world.status["gaps"] if gap["nodeRanks"].endswith("3")]
        assert (gap["reason"], gap["since"]) == ("Refused", "2026-01-01T00:00:00Z")
    world.now = NOW + timedelta(seconds=60)
    await world.reconcile()
    assert (world.status["phase"], world.status["reason"]) == ("Failed", "DeadlineExceeded")
    assert "gaps" not in world.status


async def test_service_of_another_owner_is_named(world: World) -> None:
    world.cluster.services[KEY] = {"metadata": {"namespace": "default", "name": "train"}}
    world.apply(job())
    with pytest.raises(Exception, match="has no owner"):
        await world.reconcile()
    assert world.status["reason"] == "NameTaken"


async def test_minor_changes_wait_for_the_interval(world: World) -> None:
    await world.start(replicas=3)
    world.cluster.set_pod_status("train-0-0", READY)
    before = len(world.cluster.calls)
    again_at = await world.reconciler.reconcile(KEY)
    assert world.cluster.calls[before:] == []
    assert again_at is not None
    assert NOW < again_at <= NOW + timedelta(seconds=5)
    world.now = again_at
    assert await world.reconcile() == ["patch_status train"]
    assert world.status["ready"] == "1/3"


async def test_minor_changes_do_not_wait_after_a_clock_is_set_back(world: World) -> None:
    await world.start(replicas=3)
    world.cluster.set_pod_status("train-0-0", READY)
    world.now = NOW - timedelta(minutes=10)
    assert await world.reconcile() == ["patch_status train"]


@pytest.mark.parametrize("was_valid", [True, False])
async def test_invalid_job_that_never_ran_fails(world: World, *, was_valid: bool) -> None:
    if was_valid:
        await world.start(suspend=True)
    world.apply(job(replicas="many"))
    assert await world.reconcile() == ["patch_status train"]
    assert (world.status["phase"], world.status["reason"]) == ("Failed", "InvalidSpec")
    assert "spec.replicas" in world.status["message"]
    assert await world.reconcile() == []


async def test_vanished_job_is_removed_from_the_cache(world: World) -> None:
    world.apply(job())
    del world.cluster.jobs[KEY]
    await world.reconcile()
    assert world.jobs.get(KEY) is None
    assert world.cluster.events == []
    assert await world.reconcile() == []


async def test_finished_job_is_deleted_after_its_ttl(world: World) -> None:
    await world.start(ttlSecondsAfterFinished=60)
    for index in range(2):
        world.cluster.set_pod_status(f"train-0-{index}", {"phase": "Succeeded"})
    again_at = await world.reconciler.reconcile(KEY)
    assert world.status["phase"] == "Succeeded"
    assert again_at == NOW + timedelta(seconds=60)
    world.now = again_at
    assert await world.reconcile() == ["delete_job train"]


async def test_progress_alone_is_written_once_per_interval() -> None:
    world = World()
    status = {"step": 1}

    def report_of(_: Key) -> Report:
        return Report(
            "u1", Identity(0, 0), TrainerStatus.read(json.dumps(status).encode()), NOW, world.now
        )

    world.reconciler = Reconciler(
        world.cluster, world.jobs, settings=SETTINGS, clock=lambda: world.now, report_of=report_of
    )
    await world.start()
    assert world.status["progress"]["step"] == 1
    status["step"] = 2
    world.now = NOW + timedelta(seconds=9)
    assert await world.reconcile() == []
    assert await world.reconciler.reconcile(KEY) == NOW + timedelta(seconds=10)
    world.now = NOW + timedelta(seconds=10)
    assert await world.reconcile() == ["patch_status train"]
    assert world.status["progress"]["step"] == 2
    # Other changes carry it along.
    status["step"] = 3
    world.cluster.set_pod_status("train-0-1", CRASHED)
    assert "patch_status train" in await world.reconcile()
    assert world.status["progress"]["step"] == 3


async def test_progress_of_all_jobs_shares_a_rate_limit() -> None:
    world = World()
    keys = [Key("default", f"train-{i}") for i in range(5)]

    def report_of(key: Key) -> Report:
        status = TrainerStatus.read(b'{"step": %d}' % world.now.timestamp())
        return Report(f"u-{key.name}", Identity(0, 0), status, NOW, world.now)

    world.reconciler = Reconciler(
        world.cluster,
        world.jobs,
        settings=SETTINGS,
        clock=lambda: world.now,
        report_of=report_of,
        progress_writes_per_second=0.1,
    )
    for key in keys:
        manifest = job()
        manifest["metadata"] |= {"name": key.name, "uid": f"u-{key.name}"}
        world.apply(manifest)
        await world.reconciler.reconcile(key)
    world.now += timedelta(seconds=10)
    before = len(world.cluster.calls)
    again_at = [await world.reconciler.reconcile(key) for key in keys]
    assert world.cluster.calls[before:] == ["patch_status train-0"], "the others have to wait"
    waits = [(moment - world.now).total_seconds() for moment in again_at[1:] if moment]
    assert waits == pytest.approx([10, 20, 30, 40], abs=2)
    # Other changes do not wait for the rate limit, and carry progress along.
    world.cluster.set_pod_status("train-4-0-1", CRASHED)
    await world.reconciler.reconcile(keys[4])
    stored = world.cluster.jobs[keys[4]]["status"]
    assert (stored["restarts"], stored["progress"]["step"]) == (1, world.now.timestamp())


async def test_write_without_response_is_followed_by_a_read(world: World) -> None:
    world.apply(job())
    world.cluster.lose_answers = {"patch_status"}
    await world.reconcile_fails(UnavailableError)
    assert world.status["conditions"][0]["type"] == "PodsCreated", "the write took effect"
    world.cluster.lose_answers = set()
    del world.cluster.pods[Key("default", "train-0-0")]
    calls = await world.reconcile()
    assert calls[:2] == ["patch_status train", "patch_status train"]
    assert world.status["disruptions"] == 1, "the pod was created before"
    assert "create_pod train-0-0" not in calls


async def test_outdated_job_is_not_planned_with(world: World) -> None:
    await world.start()
    suspended = job(suspend=True)
    suspended["metadata"]["generation"] = 2
    world.cluster.store_job({**suspended, "status": world.status})
    del world.cluster.pods[Key("default", "train-0-0")]
    await world.reconcile_fails(ConflictError)
    await world.reconcile()
    assert world.status["phase"] == "Suspended"
    assert world.cluster.pods == {}


async def test_deleted_job_is_read_once(world: World) -> None:
    world.apply(job())
    world.cluster.refuse["patch_status"] = UnavailableError("no answer")
    await world.reconcile_fails(UnavailableError)
    del world.cluster.refuse["patch_status"]
    del world.cluster.jobs[KEY]
    assert await world.reconcile() == ["patch_status train"]
    assert await world.reconcile() == []


async def test_restored_backup_is_accepted(world: World) -> None:
    await world.start()
    earlier = world.cluster.jobs[KEY]
    earlier["metadata"]["resourceVersion"] = "0"
    world.cluster.set_pod_status("train-0-1", CRASHED)
    await world.reconcile_fails(ConflictError)
    await world.reconcile()
    assert world.status["attempt"] == 1


@pytest.mark.parametrize(
    ("spec", "kind"),
    [(DRANET, "ResourceClaimTemplate"), ({"scheduling": {"gang": "coscheduling"}}, "PodGroup")],
)
async def test_prerequisite_is_created_before_the_first_pod(
    world: World, spec: dict[str, Any], kind: str
) -> None:
    world.apply(job(**spec))
    calls = await world.reconcile()
    first = calls.index(f"apply {kind} train")
    assert calls[first - 1 : first + 2] == [
        "create_service train",
        f"apply {kind} train",
        "create_pod train-0-0",
    ]
    assert await world.reconcile() == []


async def test_resized_gang_has_a_group_of_its_new_size(world: World) -> None:
    await world.start(scheduling={"gang": "coscheduling"})
    for change in ({"suspend": True}, {"replicas": 3, "suspend": False}):
        stored = world.cluster.jobs[KEY]
        stored["spec"] |= change
        stored["metadata"]["generation"] += 1
        world.apply(stored)
        await world.reconcile_until_quiet()
    [group] = world.cluster.applied["PodGroup"].values()
    assert group["spec"] == {"minMember": 3}
    assert len(world.cluster.pods) == 3


async def test_replaced_pod_of_an_elastic_gang_finds_its_new_minimum(world: World) -> None:
    changed = job(
        replicas=3,
        restart={"scope": "Pod"},
        elastic={"minReplicas": 3},
        scheduling={"gang": "kai"},
    )
    world.apply(changed)
    await world.reconcile_until_quiet()
    [group] = world.cluster.applied["PodGroup"].values()
    assert group["spec"]["minMember"] == 3
    applied = f"apply PodGroup {group['metadata']['name']}"
    stored = world.cluster.jobs[KEY]
    stored["spec"]["elastic"]["minReplicas"] = 2
    stored["metadata"]["generation"] += 1
    world.apply(stored)
    await world.reconcile_until_quiet()
    await world.cluster.delete_pod(Key("default", "train-0-1"), grace_seconds=0)
    await world.reconcile()  # waits for a cause
    world.now += timedelta(seconds=60)
    calls = [call for _ in range(2) for call in await world.reconcile()]
    assert calls.index(applied) < calls.index("create_pod train-0-1-r1")
    [group] = world.cluster.applied["PodGroup"].values()
    assert group["spec"]["minMember"] == 2


@pytest.mark.parametrize(
    ("spec", "call", "error", "needs"),
    [
        (DRANET, "ResourceClaimTemplate", NotServedError, "spec.accelerator.network: dranet ne"),
        (DRANET, "ResourceClaimTemplate", ForbiddenError, "spec.accelerator.network: dranet ne"),
        (A4X, "ComputeDomain", NotServedError, "spec.accelerator.network: NVLink domains need"),
        (A4X, "ComputeDomain", ForbiddenError, "spec.accelerator.network: NVLink domains need"),
        (
            {"scheduling": {"gang": "kai"}},
            "PodGroup",
            NotServedError,
            "spec.scheduling.gang: kai needs the PodGroups of KAI Scheduler",
        ),
    ],
    ids=[
        *("claims not served", "claims forbidden"),
        *("domains not served", "domains forbidden"),
        "gang not served",
    ],
)
async def test_missing_prerequisite_is_named_and_waited_for(
    world: World, spec: dict[str, Any], call: str, error: type[ClusterError], needs: str
) -> None:
    world.cluster.refuse[f"apply {call}"] = error("there is none")
    world.apply(job(**spec))
    await world.reconcile_fails(error)
    assert (world.status["phase"], world.status["reason"]) == ("Pending", "PodsForbidden")
    assert world.status["message"].startswith(f"there is none: {needs}")
    assert world.cluster.pods == {}
    world.cluster.refuse.clear()
    await world.reconcile()
    assert len(world.cluster.pods) == 2


@pytest.mark.parametrize(("first", "then"), [("low", "high"), (None, "high"), ("low", None)])
async def test_native_gang_takes_a_new_priority_while_suspended(
    world: World, first: str | None, then: str | None
) -> None:
    def of_class(name: str | None) -> dict[str, Any]:
        return template(**({"priorityClassName": name} if name else {}))

    def group() -> dict[str, Any]:
        """Return the group that all pods name."""
        pods = world.cluster.pods.values()
        [name] = {pod["spec"]["schedulingGroup"]["podGroupName"] for pod in pods}
        return world.cluster.applied["PodGroup"][Key("default", name)]

    world.apply(job(scheduling={"gang": "native"}, template=of_class(first)))
    await world.reconcile_until_quiet()
    assert group()["spec"].get("priorityClassName") == first
    for change in ({"suspend": True}, {"suspend": False, "template": of_class(then)}):
        stored = world.cluster.jobs[KEY]
        stored["spec"] |= change
        stored["metadata"]["generation"] += 1
        world.apply(stored)
        await world.reconcile_until_quiet()
    assert {key.name for key in world.cluster.pods} == {"train-1-0", "train-1-1"}
    assert group()["spec"].get("priorityClassName") == then
    for made in world.cluster.applied["PodGroup"].values():
        assert made["metadata"]["ownerReferences"][0]["uid"] == "u1"


async def test_injection_without_a_launcher_image_is_refused(world: World) -> None:
    world.apply(job(launcher="inject", template=template(container(command=["./train"]))))
    await world.reconcile_fails(ForbiddenError)
    assert (world.status["phase"], world.cluster.pods) == ("Pending", {})
    assert "start the operator with --launcher-image, or remove inject" in world.status["message"]


async def test_pods_have_the_side_cars_of_the_configuration(world: World) -> None:
    world.reconciler = Reconciler(
        world.cluster,
        world.jobs,
        settings=replace(SETTINGS, side_cars=SideCars(tcpxo="mirror.example/rxdm:v9")),
        clock=lambda: world.now,
    )
    accelerator = {"type": "nvidia-h100-mega-80gb", "count": 8, "network": "tcpxo"}
    await world.start(accelerator=accelerator)
    pods = list(world.cluster.pods.values())
    assert [pod["spec"]["initContainers"][0]["image"] for pod in pods] == [
        "mirror.example/rxdm:v9"
    ] * 2
