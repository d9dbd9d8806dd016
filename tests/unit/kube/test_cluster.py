import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from ddp_operator.api.constants import KUEUE_BOOST, LABEL_JOB_UID
from ddp_operator.api.node_signals import DEFAULT_RULES, read_node
from ddp_operator.kube import (
    ALL_NODES,
    MAX_PAGE_BYTES,
    NODES,
    ApiClient,
    KubeCluster,
    Reflector,
    Resource,
)
from ddp_operator.kube.events import EventRecorder, event_manifest
from ddp_operator.ports import (
    LOG_END_BYTES,
    AlreadyExistsError,
    Cluster,
    ClusterError,
    ConflictError,
    Event,
    Key,
    Node,
    NotFoundError,
    NotServedError,
    UnavailableError,
)

from tests.unit.kube.fake_api_server import FakeApiServer, Fault
from tests.unit.kube.test_reflector import Running, pod
from tests.waiting import eventually

JOB = Key("ns", "job")
JOBS = Resource("example.com", "v1", "trainings")
KubePods = KubeCluster[tuple[str, str]]


def owned(name: str, *, uid: str = "job-uid", kind: str = "Training") -> dict[str, Any]:
    manifest = pod(name)
    manifest["metadata"]["ownerReferences"] = [
        {"kind": "Note", "name": "n", "uid": "note-uid"},
        {"kind": kind, "name": "job", "uid": uid, "controller": True},
    ]
    return manifest


def job(name: str = "job") -> dict[str, Any]:
    return {
        "apiVersion": "example.com/v1",
        "kind": "Training",
        "metadata": {"namespace": "ns", "name": name, "uid": "job-uid"},
    }


@pytest.fixture
async def view(client: ApiClient) -> AsyncIterator[Running]:
    started = Running(client)
    task = asyncio.create_task(started.reflector.run())
    await started.reflector.wait_synced(timeout_seconds=30)
    yield started
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.fixture
def cluster(client: ApiClient, view: Running) -> KubePods:
    reflector: Reflector[tuple[str, str]] = view.reflector
    made = KubeCluster(client, job_resource=JOBS, pods=reflector)
    port: Cluster[tuple[str, str]] = made  # mypy checks that it implements the protocol
    assert port.pods_of(JOB) == []
    return made


@pytest.fixture
async def blind(server: FakeApiServer, cluster: KubePods) -> KubePods:
    """Return a cluster with a watch that delivers nothing: it sees only our writes."""
    await eventually(lambda: server.open_watches == 1)
    server.frozen = True
    return cluster


async def test_priority_boost_is_an_annotation_of_the_workload(
    cluster: KubePods, server: FakeApiServer
) -> None:
    workload = {"metadata": {"namespace": "ns", "name": "job-1", "annotations": {"own": "x"}}}
    server.create("workloads", workload)
    await cluster.set_priority_boost(Key("ns", "job-1"), 3)
    stored = server.objects["workloads", "ns", "job-1"]["metadata"]["annotations"]
    assert stored == {"own": "x", KUEUE_BOOST: "3"}
    with pytest.raises(NotFoundError):
        await cluster.set_priority_boost(Key("ns", "job-2"), 3)
    path = "/apis/kueue.x-k8s.io/v1beta2/namespaces/ns/workloads/job-1"
    assert server.count("PATCH", path) == 1


async def test_creation_with_a_lost_response_succeeds(
    blind: KubePods, server: FakeApiServer
) -> None:
    server.faults = [Fault("POST", None, after_effect=True)]
    await blind.create_pod(owned("a"))
    assert blind.pods_of(JOB) == [("a", "")]
    assert len(server.objects) == 1


@pytest.mark.parametrize(
    ("existing", "message"),
    [
        (pod("a"), "pods ns/a already exists and has no owner"),
        (owned("a", uid="earlier"), r"belongs to Training job of another UID \(earlier\)"),
    ],
)
async def test_pod_of_another_owner_is_named(
    blind: KubePods, server: FakeApiServer, existing: dict[str, Any], message: str
) -> None:
    server.create("pods", existing)
    with pytest.raises(AlreadyExistsError, match=message):
        await blind.create_pod(owned("a"))
    assert blind.pods_of(JOB) == []


async def test_name_that_keeps_appearing_is_unavailable(
    blind: KubePods, server: FakeApiServer
) -> None:
    exists = {"reason": "AlreadyExists", "message": "it exists"}
    server.faults = [Fault("POST", 409, exists, times=2)]
    await blind.create_pod(owned("a"))
    server.faults = [Fault("POST", 409, exists, times=9)]
    with pytest.raises(UnavailableError, match="keeps appearing"):
        await blind.create_pod(owned("b"))


async def test_services_are_created_like_pods(blind: KubePods, server: FakeApiServer) -> None:
    await blind.create_service(owned("svc"))
    await blind.create_service(owned("svc"))
    with pytest.raises(AlreadyExistsError, match="services ns/svc"):
        await blind.create_service(owned("svc", uid="other"))
    assert server.count("POST", "/services") == 3


async def test_existing_secret_is_neither_read_nor_changed(
    blind: KubePods, server: FakeApiServer
) -> None:
    manifest = {"metadata": {"namespace": "ns", "name": "tokens"}, "data": {"7d": "b3Vycw=="}}
    theirs = {**manifest, "data": {"7d": "dGhlaXJz"}}
    await blind.create_secret(theirs)
    await blind.create_secret(manifest)
    assert server.objects["secrets", "ns", "tokens"]["data"] == theirs["data"]
    assert (server.count("POST", "/secrets"), server.count("GET", "/secrets")) == (2, 0)


def claims(**owner: str) -> dict[str, Any]:
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate"}
    return {**owned("claims", **owner), **kind, "spec": {"spec": {}}}


async def test_claim_template_is_created_and_never_changed(
    blind: KubePods, server: FakeApiServer
) -> None:
    await blind.apply(claims())
    await blind.apply({**claims(), "spec": {"spec": {"devices": {}}}})
    assert server.count("PUT") == 0
    with pytest.raises(AlreadyExistsError, match=r"resourceclaimtemplates\.resource\.k8s\.io ns/"):
        await blind.apply(claims(uid="other"))


async def test_kind_that_is_not_served_has_its_own_error(
    blind: KubePods, server: FakeApiServer
) -> None:
    gone = {"reason": "NotFound", "message": "the server could not find the requested resource"}
    server.faults = [Fault("POST", 404, gone, times=1)]
    with pytest.raises(NotServedError, match="not serve resourceclaimtemplates") as refusal:
        await blind.apply(claims())
    assert not refusal.value.permanent
    server.faults = [Fault("POST", 404, {**gone, "message": 'namespaces "ns" not found'}, times=1)]
    with pytest.raises(NotFoundError, match="namespaces"):
        await blind.apply(claims())


def domain(uid: str = "job-uid", *, nodes: int = 2) -> dict[str, Any]:
    metadata = {"namespace": "ns", "name": "job", "labels": {LABEL_JOB_UID: uid}}
    kind = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomain"}
    return {**kind, "metadata": metadata, "spec": {"numNodes": nodes}}


async def test_object_without_a_controller_belongs_to_the_job_of_its_label(
    blind: KubePods, server: FakeApiServer
) -> None:
    await blind.apply(domain())
    await blind.apply(domain(nodes=3))
    stored = server.objects["computedomains", "ns", "job"]
    assert (stored["spec"], server.count("PUT")) == ({"numNodes": 2}, 0), "it was changed"
    with pytest.raises(
        AlreadyExistsError, match=r"an earlier job \(job-uid\), and is deleted after"
    ):
        await blind.apply(domain("other"))
    stored["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    with pytest.raises(AlreadyExistsError, match="ns/job is being deleted"):
        await blind.apply(domain())
    stored["metadata"]["labels"] = {}
    with pytest.raises(AlreadyExistsError, match="ns/job already exists and has no owner"):
        await blind.apply(domain())


async def test_objects_are_found_by_their_labels(
    blind: KubePods, server: FakeApiServer, client: ApiClient
) -> None:
    for namespace, uid in (("ns", "a"), ("ns", "b"), ("elsewhere", "a")):
        one = domain(uid)
        one["metadata"] |= {"namespace": namespace, "name": f"job-{uid}"}
        server.create("computedomains", one)
    server.create("computedomains", {"metadata": {"namespace": "ns", "name": "theirs"}})

    async def found(where: KubePods, uid: str, **metadata: str) -> set[tuple[str, str]]:
        like = {**domain(), "metadata": metadata}
        objects = await where.find(like, labels={LABEL_JOB_UID: uid})
        assert {(one["kind"], one["apiVersion"]) for one in objects} <= {
            ("ComputeDomain", "resource.nvidia.com/v1beta1")
        }
        return {(one["metadata"]["namespace"], one["metadata"]["name"]) for one in objects}

    assert await found(blind, "") == {("ns", "job-a"), ("ns", "job-b"), ("elsewhere", "job-a")}
    assert await found(blind, "a", namespace="ns") == {("ns", "job-a")}
    pods: Reflector[tuple[str, str]] = Running(client).reflector
    single = KubeCluster(client, job_resource=JOBS, pods=pods, namespace="elsewhere")
    assert await found(single, "") == {("elsewhere", "job-a")}
    server.faults = [Fault("GET", 404, {"message": "the server could not find it"})]
    with pytest.raises(NotServedError, match=r"not serve computedomains\.resource\.nvidia\.com v1"):
        await found(blind, "")


def policy(port: int = 1, **owner: str) -> dict[str, Any]:
    kind = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy"}
    spec = {"ingress": [{"ports": [{"port": port}]}]}
    return {**owned("net", **owner), **kind, "spec": spec}


NET = ("networkpolicies", "ns", "net")


async def test_network_policy_is_changed_only_if_it_differs(
    blind: KubePods, server: FakeApiServer
) -> None:
    await blind.apply(policy())
    server.objects[NET]["spec"]["priority"] = 7  # a default of the server
    await blind.apply(policy())
    assert server.count("PUT") == 0
    version = server.objects[NET]["metadata"]["resourceVersion"]
    await blind.apply(policy(port=2))
    changed = {**policy(port=2)["spec"], "priority": 7}
    assert server.objects[NET]["spec"] == changed
    [put] = [request for request in server.requests if request.method == "PUT"]
    assert put.body["metadata"]["resourceVersion"] == version
    with pytest.raises(AlreadyExistsError, match=r"networkpolicies\.networking\.k8s\.io ns/net"):
        await blind.apply(policy(port=3, uid="other"))
    assert server.objects[NET]["spec"] == changed


async def test_update_needs_the_version_that_was_read(
    blind: KubePods, server: FakeApiServer
) -> None:
    await blind.apply(policy())
    kind = {name: policy()[name] for name in ("apiVersion", "kind")}
    stored = {**await blind.read(policy()), **kind}
    updated = await blind.update({**stored, "spec": policy(port=2)["spec"]})
    assert updated["spec"] == server.objects[NET]["spec"] == policy(port=2)["spec"]
    with pytest.raises(ConflictError):
        await blind.update(stored)
    assert server.objects[NET]["spec"] == policy(port=2)["spec"]


async def test_status_patch_and_deletion_need_the_version_that_was_read(
    blind: KubePods, server: FakeApiServer
) -> None:
    with pytest.raises(NotFoundError):
        await blind.read(policy())
    await blind.apply(policy())
    stored = await blind.read(policy())
    assert stored["spec"] == policy()["spec"]
    kind = {name: policy()[name] for name in ("apiVersion", "kind")}
    await blind.patch_status_of({**stored, **kind}, {"a": "b"})
    [patch] = [request for request in server.requests if request.method == "PATCH"]
    assert patch.path.endswith("/networkpolicies/net/status")
    assert patch.body["status"] == {"a": "b"}
    with pytest.raises(ConflictError):
        await blind.patch_status_of({**stored, **kind}, {"a": "c"})
    other = {**stored["metadata"], "uid": "other"}
    await blind.delete({**stored, **kind, "metadata": other})
    assert NET in server.objects
    await blind.delete({**stored, **kind})
    assert NET not in server.objects
    await blind.delete({**stored, **kind})


async def test_network_policy_is_deleted_only_for_its_owner(
    blind: KubePods, server: FakeApiServer
) -> None:
    name = Key("ns", "net")
    await blind.delete_network_policy(name, owner_uid="job-uid")
    await blind.apply(policy())
    await blind.delete_network_policy(name, owner_uid="other")
    server.create("networkpolicies", {"metadata": {"namespace": "ns", "name": "by-hand"}})
    await blind.delete_network_policy(Key("ns", "by-hand"), owner_uid="job-uid")
    assert server.count("DELETE") == 0
    uid = server.objects[NET]["metadata"]["uid"]
    await blind.delete_network_policy(name, owner_uid="job-uid")
    assert NET not in server.objects
    [deletion] = [request for request in server.requests if request.method == "DELETE"]
    assert deletion.body["preconditions"] == {"uid": uid}
    for status in (404, 409):  # it was deleted, or replaced, meanwhile
        await blind.apply(policy())
        server.faults = [Fault("DELETE", status, {"message": "another one by now"})]
        await blind.delete_network_policy(name, owner_uid="job-uid")
    assert server.count("DELETE") == 3


ENDING = {"name": "a", "namespace": "ns", "deletionTimestamp": "2026-01-01T00:00:00Z"}
"""Metadata of a pod that was deleted before a write was stored: without a version."""


@pytest.mark.parametrize("node", [None, "node-1"])
async def test_deleted_pod_is_terminating_at_once(
    blind: KubePods, view: Running, server: FakeApiServer, node: str | None
) -> None:
    manifest = {**owned("a"), "spec": {"nodeName": node} if node else {}}
    await blind.delete_pod(Key("ns", "a"), grace_seconds=None)  # it does not exist yet
    await blind.patch_pod(Key("ns", "a"), {"labels": {"x": "y"}})
    await blind.create_pod(manifest)
    assert blind.pods_of(JOB) == [("a", "")]
    grace_seconds = 7 if node else None
    await blind.delete_pod(Key("ns", "a"), grace_seconds=grace_seconds)
    [*_, deletion] = [request for request in server.requests if request.method == "DELETE"]
    assert deletion.body.get("gracePeriodSeconds") == grace_seconds
    assert blind.pods_of(JOB) == [("a", "Terminating")]
    assert (("pods", "ns", "a") in server.objects) == bool(node)
    server.frozen = False
    if node:
        server.delete("pods", "ns", "a")
    server.wake()
    await view.shows({})


@pytest.mark.parametrize(
    "answer",
    [
        Fault("DELETE", 200, {"kind": "Status", "status": "Success"}, after_effect=True),
        Fault("DELETE", 200, {"kind": "Pod", "metadata": {"name": "a"}}, after_effect=True),
        Fault("DELETE", 404, {"reason": "NotFound", "message": "gone"}, after_effect=True),
        # Somebody else's deletion came in between.
        Fault("DELETE", 200, {"kind": "Pod", "metadata": ENDING}, after_effect=True),
    ],
)
async def test_pod_that_is_already_deleted_vanishes_at_once(
    blind: KubePods, view: Running, server: FakeApiServer, answer: Fault
) -> None:
    await blind.create_pod(owned("a"))
    server.update("pods", "ns", "a", {"status": {"phase": "Running"}})  # the watch reports it later
    server.faults = [answer]
    before = view.changes[JOB]
    await blind.delete_pod(Key("ns", "a"), grace_seconds=None)
    assert blind.pods_of(JOB) == []
    assert view.changes[JOB] == before + 1
    server.frozen = False
    server.create("pods", pod("b"))
    await view.shows({"b": ""})
    assert view.changes[JOB] == before + 2


async def test_pod_deleted_during_a_patch_vanishes(
    blind: KubePods, server: FakeApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    await blind.create_pod(owned("a"))
    server.faults = [Fault("PATCH", 200, {"kind": "Pod", "metadata": ENDING}, after_effect=True)]
    await blind.patch_pod(Key("ns", "a"), {"labels": {"x": "y"}})
    assert blind.pods_of(JOB) == []
    assert not caplog.records


async def test_later_pod_of_the_same_name_is_not_deleted(
    blind: KubePods, view: Running, server: FakeApiServer
) -> None:
    await blind.create_pod(owned("a"))
    server.delete("pods", "ns", "a")
    server.create("pods", pod("a"))
    await blind.delete_pod(Key("ns", "a"), grace_seconds=None)
    assert "deletionTimestamp" not in server.objects["pods", "ns", "a"]["metadata"]
    assert blind.pods_of(JOB) == []
    server.frozen = False
    server.wake()
    await view.shows({"a": ""})


ATTEMPT: Final = {"job": ["job"], "index": ["0", "1", "2"]}


async def numbered(blind: KubePods, *indexes: str) -> dict[Key, str | None]:
    """Create pods with an index, as their label and name, and return their UIDs."""
    for index in indexes:
        manifest = {**owned(index), "spec": {"nodeName": "node-1"}}
        manifest["metadata"]["labels"]["index"] = index
        await blind.create_pod(manifest)
    return {Key("ns", name): blind.uid_of(Key("ns", name)) for name in indexes}


def ending(server: FakeApiServer) -> list[str]:
    pods = server.objects.values()
    return [pod["metadata"]["name"] for pod in pods if "deletionTimestamp" in pod["metadata"]]


async def test_pods_are_deleted_by_one_request(
    blind: KubePods, view: Running, server: FakeApiServer
) -> None:
    pods = await numbered(blind, "0", "1", "2")
    await numbered(blind, "3")
    server.update("pods", "ns", "1", {"metadata": {"finalizers": ["kueue.x-k8s.io/managed"]}})
    for _ in range(2):  # a repetition is harmless
        rest = await blind.delete_pods(pods, labels=ATTEMPT, grace_seconds=15)
        assert rest == []
        assert ending(server) == ["0", "1", "2"]
    deletions = [request for request in server.requests if request.method == "DELETE"]
    assert {request.path for request in deletions} == {"/api/v1/namespaces/ns/pods"}
    assert {request.query["labelSelector"] for request in deletions} == {
        "job in (job),index in (0,1,2)"
    }
    assert deletions[0].body["gracePeriodSeconds"] == 15
    assert "preconditions" not in deletions[0].body
    assert "PartialObjectMetadataList" in deletions[0].headers["Accept"]
    assert ("0", "") in blind.pods_of(JOB), "only the watch knows how they end"
    server.frozen = False
    server.wake()
    await view.shows({**dict.fromkeys("012", "Terminating"), "3": ""})


async def test_pods_that_the_labels_do_not_select_are_returned(
    blind: KubePods, server: FakeApiServer
) -> None:
    pods = await numbered(blind, "0", "1", "2")
    server.update("pods", "ns", "1", {"metadata": {"labels": {"index": "9"}}})
    server.delete("pods", "ns", "2")
    rest = await blind.delete_pods(pods, labels=ATTEMPT, grace_seconds=None)
    assert rest == [Key("ns", "1"), Key("ns", "2")]
    assert ending(server) == ["0"]


@pytest.mark.parametrize("reason", ["a webhook", "no right", "a conflict", "a large answer"])
async def test_pods_of_a_refused_request_are_returned(
    blind: KubePods, server: FakeApiServer, reason: str
) -> None:
    pods = await numbered(blind, "0", "1", "2")
    if reason == "a webhook":
        server.protected = {"1"}
    else:
        server.faults = [
            {
                "no right": Fault("DELETE", 403, {"reason": "Forbidden"}),
                "a conflict": Fault("DELETE", 409, {"reason": "Conflict"}),
                "a large answer": Fault("DELETE", 200, "x" * (MAX_PAGE_BYTES + 1)),
            }[reason]
        ]
    rest = await blind.delete_pods(pods, labels=ATTEMPT, grace_seconds=None)
    assert list(rest) == list(pods)


@pytest.mark.parametrize("labels", [{}, {"index": []}])
async def test_pods_are_never_deleted_without_labels(
    blind: KubePods, server: FakeApiServer, labels: dict[str, list[str]]
) -> None:
    pods = await numbered(blind, "0", "1")
    with pytest.raises(ValueError, match="all pods of the namespace"):
        await blind.delete_pods(pods, labels=labels, grace_seconds=None)
    assert server.count("DELETE") == 0


async def test_labels_are_set_and_removed(
    blind: KubePods, view: Running, server: FakeApiServer
) -> None:
    await blind.create_pod(owned("a"))
    await blind.patch_pod(Key("ns", "a"), {"labels": {"job": "other", "role": "old"}})
    assert (blind.pods_of(JOB), blind.pods_of(Key("ns", "other"))) == ([], [("a", "")])
    await blind.patch_pod(Key("ns", "a"), {"labels": {"role": None}})
    assert "role" not in server.objects["pods", "ns", "a"]["metadata"]["labels"]
    # The projection has no such label, so its removal is not reported.
    assert view.changes == {JOB: 2, Key("ns", "other"): 1}


async def test_status_patch_returns_the_job(cluster: KubePods, server: FakeApiServer) -> None:
    stored = server.create("trainings", job())
    version = stored["metadata"]["resourceVersion"]
    answer = await cluster.patch_status(JOB, {"phase": "Running"}, resource_version=version)
    assert answer["status"] == {"phase": "Running"}
    patch = next(request for request in server.requests if request.method == "PATCH")
    assert patch.path == "/apis/example.com/v1/namespaces/ns/trainings/job/status"
    assert patch.headers["Content-Type"] == "application/merge-patch+json"
    with pytest.raises(ConflictError):
        await cluster.patch_status(JOB, {"phase": "Failed"}, resource_version=version)
    await cluster.patch_status(JOB, {"phase": "Failed"}, resource_version=None)
    with pytest.raises(NotFoundError):
        await cluster.patch_status(Key("ns", "no"), {}, resource_version=None)


async def test_job_is_deleted_by_uid_with_its_dependents(
    cluster: KubePods, server: FakeApiServer
) -> None:
    uid = server.create("trainings", job())["metadata"]["uid"]
    await cluster.delete_job(JOB, uid="of an earlier job")
    assert ("trainings", "ns", "job") in server.objects
    await cluster.delete_job(JOB, uid=uid)
    assert server.objects == {}
    await cluster.delete_job(JOB, uid=uid)
    options = [request.body for request in server.requests if request.method == "DELETE"]
    assert {option["propagationPolicy"] for option in options} == {"Background"}


async def test_repeated_event_is_posted_once_in_the_background(
    cluster: KubePods, server: FakeApiServer
) -> None:
    event = Event("Restarting", "rank 1 failed", warning=True)
    await cluster.emit_event(job(), event)
    await cluster.emit_event(job(), event)
    assert server.count("POST") == 0
    await cluster.emit_event(job(), Event("Restarting", "rank 2 failed"))
    await cluster.close(timeout_seconds=30)
    bodies = [request.body for request in server.requests if request.method == "POST"]
    posted = [(body["type"], body["message"]) for body in bodies]
    assert sorted(posted) == [("Normal", "rank 2 failed"), ("Warning", "rank 1 failed")]


async def test_failed_event_is_logged(
    cluster: KubePods, server: FakeApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.faults = [Fault("POST", 500, {"message": "out of order"}, times=9)]
    await cluster.emit_event(job(), Event("Started", "off we go"))
    await cluster.close(timeout_seconds=30)
    assert "Event Started about ns/job is lost: out of order" in caplog.text
    assert server.count("POST") == 1


async def test_event_is_posted_again_after_a_while(
    client: ApiClient, server: FakeApiServer
) -> None:
    now = 0.0
    recorder = EventRecorder(client, clock=lambda: now)
    for now in (0.0, 299.0, 301.0):  # noqa: B007 the clock reads it
        recorder.record(job(), Event("Waiting", "no room"))
        await recorder.flush(timeout_seconds=30)
    assert server.count("POST", "/events") == 2
    for number in range(100):
        now = 301.0 + number * 10.0
        recorder.record(job(), Event("Waiting", f"no room {number}"))
        await recorder.flush(timeout_seconds=30)
    assert len(recorder._said) <= 31


def test_event_names_its_job_and_has_a_limited_length() -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    first = event_manifest(job(), Event("R", "m" * 5000), now=now)
    second = event_manifest(job(), Event("R", "m" * 5000), now=now)
    assert first["metadata"]["name"] != second["metadata"]["name"]
    assert len(first["message"]) == 1024
    assert first["lastTimestamp"] == "2026-01-02T03:04:05Z"
    assert first["involvedObject"] == {
        "apiVersion": "example.com/v1",
        "kind": "Training",
        "namespace": "ns",
        "name": "job",
        "uid": "job-uid",
        "resourceVersion": "",
    }


async def test_end_of_a_log_is_read(cluster: KubePods, server: FakeApiServer) -> None:
    server.logs["a"] = b"x" * LOG_END_BYTES + b"\nstep 7\n"
    end = await cluster.log_end(Key("default", "a"), "trainer")
    assert len(end) == LOG_END_BYTES
    assert end.endswith(b"x\nstep 7\n")
    [query] = [item for item in server.log_queries if item["container"] == "trainer"]
    assert (query["tailLines"], query["limitBytes"]) == ("100", str(2 * 1024 * 1024))
    with pytest.raises(ClusterError):
        await cluster.log_end(Key("default", "none"), "trainer")


async def test_nodes_are_read_again_after_a_change(
    client: ApiClient, server: FakeApiServer, view: Running
) -> None:
    clusters: list[KubePods] = []
    nodes: Reflector[Node] = Reflector(
        client,
        NODES.path(),
        label_selector="",
        project=lambda manifest: read_node(manifest, DEFAULT_RULES),
        group=lambda _: ALL_NODES,
        on_change=lambda _: clusters[0].nodes_changed(),
    )
    cluster: KubePods = KubeCluster(client, job_resource=JOBS, pods=view.reflector, nodes=nodes)
    clusters.append(cluster)
    assert cluster.nodes() == ()
    server.create("nodes", {"metadata": {"name": "node-a", "namespace": ""}})
    watching = asyncio.create_task(nodes.run())
    await eventually(lambda: [node.name for node in cluster.nodes()] == ["node-a"])
    known = cluster.nodes()
    assert cluster.nodes() is known, "the list is cached"
    assert known.signalled == {}
    taint = {"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}
    server.update("nodes", "", "node-a", {"spec": {"taints": [taint]}})
    await eventually(lambda: "node-a" in cluster.nodes().signalled)
    watching.cancel()
