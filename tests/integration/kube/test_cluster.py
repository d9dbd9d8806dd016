"""Writes of KubeCluster: they are seen at once, mean the same twice, and are refused in words."""

import asyncio
from typing import Any

import pytest
from ddp_operator.kube import (
    PODS,
    ApiClient,
    KubeCluster,
    list_uids,
)
from ddp_operator.ports import (
    AlreadyExistsError,
    ConflictError,
    Event,
    ForbiddenError,
    InvalidError,
    Key,
    NotFoundError,
)

from tests.integration.kube.view import (
    JOBS,
    LABEL,
    View,
    owner_reference,
    pod,
    status,
    viewing,
)
from tests.integration.tcp_proxy import TcpProxy
from tests.waiting import eventually


async def test_a_created_pod_is_visible_at_once_and_creating_it_twice_is_one(
    view: View, job: dict[str, Any], namespace: str
) -> None:
    await view.cluster.create_pod(pod(namespace, "a", job=job))
    assert view.pods() == {"a": "Pending"}
    await view.cluster.create_pod(pod(namespace, "a", job=job))
    assert view.pods() == {"a": "Pending"}


async def test_a_foreign_object_of_that_name_is_named(
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


async def test_an_unscheduled_pod_is_deleted_at_once(
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


async def test_the_servers_answer_to_an_immediate_deletion_shows_it_as_deleted(
    admin: ApiClient, namespace: str
) -> None:
    """What `delete_pod` relies on to tell a pod that is going from one that stays."""
    await admin.request("POST", PODS.path(namespace=namespace), body=pod(namespace, "a"))
    answer = await admin.request("DELETE", PODS.path(namespace=namespace, name="a"))
    assert answer["kind"] == "Pod"
    assert answer["metadata"]["deletionTimestamp"]


async def test_a_scheduled_pod_is_terminating_until_its_kubelet_lets_go(
    view: View, admin: ApiClient, namespace: str
) -> None:
    await view.cluster.create_pod(pod(namespace, "a", node="node-1"))
    await view.cluster.delete_pod(Key(namespace, "a"), grace_seconds=25)
    assert view.pods() == {"a": "Terminating"}
    stored = await admin.request("GET", PODS.path(namespace=namespace, name="a"))
    assert stored["metadata"]["deletionGracePeriodSeconds"] == 25
    await view.cluster.delete_pod(Key(namespace, "a"), grace_seconds=0)
    await view.shows({})


async def test_a_pod_that_vanished_unseen_is_not_shown_after_deleting_it(
    admin: ApiClient, proxied: ApiClient, proxy: TcpProxy, namespace: str
) -> None:
    async with viewing(proxied, namespace) as view:
        await view.cluster.create_pod(pod(namespace, "a"))
        blind = KubeCluster(admin, job_resource=JOBS, pods=view.reflector)
        proxy.silence()
        await admin.request("DELETE", PODS.path(namespace=namespace, name="a"))
        assert view.pods() == {"a": "Pending"}
        await blind.delete_pod(Key(namespace, "a"), grace_seconds=None)
        assert view.pods() == {}
        proxy.resume()
        await view.cluster.create_pod(pod(namespace, "b"))
        await view.shows({"b": "Pending"})


async def test_another_pod_that_has_taken_the_name_is_left_as_it_is(
    view: View, admin: ApiClient, namespace: str
) -> None:
    key = Key(namespace, "a")
    await view.cluster.create_pod(pod(namespace, "a"))
    meant = view.cluster.uid_of(key)
    await admin.request("DELETE", PODS.path(namespace=namespace, name="a"))
    await view.shows({})
    other = await admin.request("POST", PODS.path(namespace=namespace), body=pod(namespace, "a"))
    await view.shows({"a": "Pending"})
    await view.cluster.patch_pod(key, {"labels": {"x": "y"}}, uid=meant)
    await view.cluster.delete_pod(key, grace_seconds=None, uid=meant)
    stored = await admin.request("GET", PODS.path(namespace=namespace, name="a"))
    assert stored["metadata"]["uid"] == other["metadata"]["uid"] != meant
    assert "x" not in stored["metadata"]["labels"]
    assert view.pods() == {"a": "Pending"}


async def test_labels_are_patched_and_move_a_pod(
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


async def test_a_status_patch_holds_only_for_the_version_it_was_made_for(
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


async def test_a_job_is_deleted_only_under_its_uid(
    view: View, admin: ApiClient, job: dict[str, Any], namespace: str
) -> None:
    await view.cluster.delete_job(view.job, uid="00000000-0000-0000-0000-000000000000")
    assert view.job in await list_uids(admin, JOBS.path(namespace=namespace))
    await view.cluster.delete_job(view.job, uid=job["metadata"]["uid"])
    assert await list_uids(admin, JOBS.path(namespace=namespace)) == {}
    await view.cluster.delete_job(view.job, uid=job["metadata"]["uid"])


async def test_an_event_is_read_where_people_look(
    view: View, admin: ApiClient, job: dict[str, Any], namespace: str
) -> None:
    await view.cluster.emit_event(job, Event("Restarting", "rank 1 failed", warning=True))
    await view.cluster.close(timeout_seconds=30)
    params = {"fieldSelector": f"involvedObject.uid={job['metadata']['uid']}"}
    path = f"/api/v1/namespaces/{namespace}/events"
    [event] = (await admin.request("GET", path, params=params))["items"]
    assert (event["type"], event["reason"], event["message"], event["count"]) == (
        "Warning",
        "Restarting",
        "rank 1 failed",
        1,
    )


async def test_the_servers_words_about_an_invalid_pod_pass_through(
    view: View, namespace: str
) -> None:
    invalid = pod(namespace, "a")
    invalid["spec"]["containers"][0]["name"] = "Not A Name"
    with pytest.raises(InvalidError, match=r"spec\.containers\[0\]\.name: Invalid value") as e:
        await view.cluster.create_pod(invalid)
    assert e.value.status == 422
    invalid["spec"]["containers"] = "none"
    with pytest.raises(InvalidError) as e:
        await view.cluster.create_pod(invalid)
    assert e.value.status == 400


async def test_a_quota_refuses_for_now(view: View, admin: ApiClient, namespace: str) -> None:
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}}
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    await admin.request("POST", path, body=quota)

    async def observed() -> bool:
        return "used" in (await admin.request("GET", f"{path}/few")).get("status", {})

    await eventually(observed)
    await view.cluster.create_pod(pod(namespace, "a"))
    with pytest.raises(ForbiddenError, match="exceeded quota"):
        await view.cluster.create_pod(pod(namespace, "b"))


async def test_many_creations_under_a_quota_all_succeed(
    view: View, admin: ApiClient, namespace: str
) -> None:
    """The server counts them in one object, and answers a collision there with a 409."""
    quota = {"metadata": {"name": "enough"}, "spec": {"hard": {"pods": "100"}}}
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    await admin.request("POST", path, body=quota)
    names = [f"p{index:02}" for index in range(40)]
    await asyncio.gather(*(view.cluster.create_pod(pod(namespace, name)) for name in names))
    assert sorted(view.pods()) == names
