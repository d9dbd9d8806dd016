"""Writes of KubeCluster: visible at once, idempotent, and refused with clear messages."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from ddp_operator.kube import (
    PODS,
    SERVICES,
    ApiClient,
    KubeCluster,
    check_served,
    list_uids,
    load_credentials,
)
from ddp_operator.ports import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenError,
    Key,
    NotFoundError,
)

from tests.cluster import ControlPlane
from tests.integration.http_proxy import HttpProxy
from tests.integration.kube.view import JOBS, LABEL, View, owner_reference, pod, status, viewing
from tests.waiting import eventually


async def test_pod_created_twice_is_one_and_visible_at_once(
    view: View, job: dict[str, Any], namespace: str
) -> None:
    await view.cluster.create_pod(pod(namespace, "a", job=job))
    assert view.pods() == {"a": "Pending"}
    await view.cluster.create_pod(pod(namespace, "a", job=job))
    assert view.pods() == {"a": "Pending"}


async def test_foreign_object_with_the_same_name_is_named(
    view: View, admin: ApiClient, job: dict[str, Any], namespace: str
) -> None:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "namespace": namespace,
            "name": "a",
            "ownerReferences": [owner_reference(job)],
        },
        "spec": {"clusterIP": "None", "selector": {LABEL: "job"}},
    }
    await view.cluster.create_service(service)
    await view.cluster.create_service(service)
    service["metadata"]["ownerReferences"][0]["uid"] = "another"  # type: ignore[index]
    with pytest.raises(AlreadyExistsError, match=r"services .*/a already exists and belongs to"):
        await view.cluster.create_service(service)
    await admin.request("POST", PODS.path(namespace=namespace), body=pod(namespace, "b"))
    with pytest.raises(AlreadyExistsError, match="has no owner"):
        await view.cluster.create_pod(pod(namespace, "b", job=job))


async def test_unscheduled_pod_is_deleted_at_once(
    view: View, admin: ApiClient, namespace: str
) -> None:
    await view.cluster.create_pod(pod(namespace, "a"))
    await view.cluster.delete_pod(Key(namespace, "a"), grace_seconds=None)
    assert view.pods() in ({"a": "Terminating"}, {})
    with pytest.raises(NotFoundError):
        await admin.request("GET", PODS.path(namespace=namespace, name="a"))
    await view.shows({})
    await view.cluster.delete_pod(Key(namespace, "a"), grace_seconds=None)
    await view.cluster.patch_pod(Key(namespace, "a"), {"labels": {"x": "y"}})


async def test_answer_to_immediate_deletion_has_a_deletion_timestamp(
    admin: ApiClient, namespace: str
) -> None:
    """Check the server's behaviour on which `delete_pod` relies."""
    await admin.request("POST", PODS.path(namespace=namespace), body=pod(namespace, "a"))
    answer = await admin.request("DELETE", PODS.path(namespace=namespace, name="a"))
    assert answer["kind"] == "Pod"
    assert answer["metadata"]["deletionTimestamp"]


async def test_scheduled_pod_terminates_until_its_kubelet_removes_it(
    view: View, admin: ApiClient, namespace: str
) -> None:
    await view.cluster.create_pod(pod(namespace, "a", node="node-1"))
    await view.cluster.delete_pod(Key(namespace, "a"), grace_seconds=25)
    assert view.pods() == {"a": "Terminating"}
    stored = await admin.request("GET", PODS.path(namespace=namespace, name="a"))
    assert stored["metadata"]["deletionGracePeriodSeconds"] == 25
    await view.cluster.delete_pod(Key(namespace, "a"), grace_seconds=0)
    await view.shows({})


async def test_one_request_deletes_the_pods_with_some_labels(
    view: View, admin: ApiClient, namespace: str
) -> None:
    """The request names pods, one of which is held by a finalizer, and leaves others alone."""
    for name, node in (("a", "node-1"), ("b", None), ("c", "node-1"), ("d", "node-1")):
        manifest = pod(namespace, name, node=node)
        manifest["metadata"]["labels"]["index"] = name
        if name == "c":
            manifest["metadata"]["finalizers"] = ["example.com/held"]
        await view.cluster.create_pod(manifest)
    named = {Key(namespace, name): view.cluster.uid_of(Key(namespace, name)) for name in "abcx"}
    labels = {LABEL: ["job"], "index": ["a", "b", "c", "x"]}
    assert await view.cluster.delete_pods(named, labels=labels, grace_seconds=25) == [
        Key(namespace, "x")
    ]
    await view.shows({"a": "Terminating", "c": "Terminating", "d": "Pending"})
    stored = await admin.request("GET", PODS.path(namespace=namespace, name="a"))
    assert stored["metadata"]["deletionGracePeriodSeconds"] == 25
    version = stored["metadata"]["resourceVersion"]
    await view.cluster.delete_pods(named, labels=labels, grace_seconds=25)
    stored = await admin.request("GET", PODS.path(namespace=namespace, name="a"))
    assert stored["metadata"]["resourceVersion"] == version, "a repetition changes nothing"


async def test_deleting_a_pod_that_vanished_unseen_hides_it(
    admin: ApiClient, proxied: ApiClient, proxy: HttpProxy, namespace: str
) -> None:
    async with viewing(proxied, namespace) as view:
        await view.cluster.create_pod(pod(namespace, "a"))
        uninformed = KubeCluster(admin, job_resource=JOBS, pods=view.reflector)
        proxy.silence()
        await admin.request("DELETE", PODS.path(namespace=namespace, name="a"))
        assert view.pods() == {"a": "Pending"}
        await uninformed.delete_pod(Key(namespace, "a"), grace_seconds=None)
        assert view.pods() == {}
        proxy.resume()
        await view.cluster.create_pod(pod(namespace, "b"))
        await view.shows({"b": "Pending"})


async def test_new_pod_with_the_same_name_stays_unchanged(
    view: View, admin: ApiClient, namespace: str
) -> None:
    key = Key(namespace, "a")
    await view.cluster.create_pod(pod(namespace, "a"))
    old = view.cluster.uid_of(key)
    await admin.request("DELETE", PODS.path(namespace=namespace, name="a"))
    await view.shows({})
    new = await admin.request("POST", PODS.path(namespace=namespace), body=pod(namespace, "a"))
    await view.shows({"a": "Pending"})
    await view.cluster.patch_pod(key, {"labels": {"x": "y"}}, uid=old)
    await view.cluster.delete_pod(key, grace_seconds=None, uid=old)
    stored = await admin.request("GET", PODS.path(namespace=namespace, name="a"))
    assert stored["metadata"]["uid"] == new["metadata"]["uid"] != old
    assert "x" not in stored["metadata"]["labels"]
    assert view.pods() == {"a": "Pending"}


async def test_patched_labels_move_a_pod_to_another_job(
    view: View, admin: ApiClient, namespace: str
) -> None:
    await view.cluster.create_pod(pod(namespace, "a"))
    await view.cluster.patch_pod(Key(namespace, "a"), {"labels": {LABEL: "other", "x": "y"}})
    assert view.pods() == {}
    assert view.cluster.pods_of(Key(namespace, "other")) == [("a", "Pending")]
    await view.cluster.patch_pod(Key(namespace, "a"), {"labels": {LABEL: None}})
    await eventually(lambda: len(view.reflector) == 0)
    stored = await admin.request("GET", PODS.path(namespace=namespace, name="a"))
    assert stored["metadata"]["labels"] == {"x": "y"}


async def test_status_patch_applies_only_to_its_resource_version(
    view: View, job: dict[str, Any]
) -> None:
    version = job["metadata"]["resourceVersion"]
    first, second = status("10.0.0.1"), status("10.0.0.2")
    patched = await view.cluster.patch_status(view.job, first, resource_version=version)
    assert patched["status"] == first
    assert patched["spec"] == job["spec"]
    with pytest.raises(ConflictError, match="modified"):
        await view.cluster.patch_status(view.job, second, resource_version=version)
    again = await view.cluster.patch_status(view.job, second, resource_version=None)
    assert again["status"] == second
    other = Key(view.job.namespace, "other")
    with pytest.raises(NotFoundError):
        await view.cluster.patch_status(other, {}, resource_version=None)


async def test_job_is_deleted_only_with_its_uid(
    view: View, admin: ApiClient, job: dict[str, Any], namespace: str
) -> None:
    await view.cluster.delete_job(view.job, uid="00000000-0000-0000-0000-000000000000")
    assert view.job in await list_uids(admin, JOBS.path(namespace=namespace))
    await view.cluster.delete_job(view.job, uid=job["metadata"]["uid"])
    assert await list_uids(admin, JOBS.path(namespace=namespace)) == {}
    await view.cluster.delete_job(view.job, uid=job["metadata"]["uid"])


async def test_many_creations_under_a_quota_all_succeed(
    view: View, admin: ApiClient, namespace: str
) -> None:
    """The server counts them in one object, and answers a conflict there with status 409."""
    quota = {"metadata": {"name": "enough"}, "spec": {"hard": {"pods": "100"}}}
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    await admin.request("POST", path, body=quota)
    names = [f"p{index:02}" for index in range(40)]
    await asyncio.gather(*(view.cluster.create_pod(pod(namespace, name)) for name in names))
    assert sorted(view.pods()) == names


async def test_unknown_token_is_refused(control_plane: ControlPlane, tmp_path: Path) -> None:
    config = json.loads(control_plane.kubeconfig.read_text())
    config["users"][0]["user"]["token"] = "wrong"
    (tmp_path / "wrong").write_text(json.dumps(config))
    async with ApiClient(load_credentials(kubeconfig=str(tmp_path / "wrong"))) as client:
        with pytest.raises(ForbiddenError, match="Unauthorized") as raised:
            await client.request("GET", PODS.path())
    assert raised.value.status == 401


async def test_served_resources_are_recognized(admin: ApiClient) -> None:
    assert await check_served(admin, JOBS)
    assert await check_served(admin, SERVICES)
    assert not await check_served(admin, JOBS._replace(version="v2"))
    assert not await check_served(admin, JOBS._replace(plural="holidays"))
