"""The client, the reflector and KubeCluster against a real API server."""

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from ddp_operator.kube import (
    PODS,
    SERVICES,
    ApiClient,
    KubeCluster,
    Permission,
    Reflector,
    Resource,
    check_access,
    check_served,
    list_names,
    load_credentials,
)
from ddp_operator.kube.errors import GoneError
from ddp_operator.ports import (
    AlreadyExistsError,
    ConflictError,
    Event,
    ForbiddenError,
    InvalidError,
    Key,
    NotFoundError,
    UnavailableError,
)

from tests.cluster import ControlPlane
from tests.integration.tcp_proxy import TcpProxy
from tests.waiting import eventually

# An Ingress stands for the job: it has a group, a spec and a status subresource that, without an
# ingress controller, nobody else writes.
JOBS = Resource("networking.k8s.io", "v1", "ingresses")
LABEL = "kube-test.example.com/job"


def pod(
    namespace: str, name: str, *, job: dict[str, Any] | None = None, node: str | None = None
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"namespace": namespace, "name": name, "labels": {LABEL: "job"}}
    if job is not None:
        metadata["ownerReferences"] = [owner_reference(job)]
    spec: dict[str, Any] = {"containers": [{"name": "trainer", "image": "none"}]}
    if node is not None:
        spec["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def owner_reference(job: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": job["apiVersion"],
        "kind": job["kind"],
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "controller": True,
    }


def project(manifest: Any) -> tuple[str, str]:
    """A pod's name, and whether it is terminating or in which phase."""
    metadata = manifest["metadata"]
    state = "Terminating" if "deletionTimestamp" in metadata else manifest["status"]["phase"]
    return metadata["name"], state


def group(manifest: Any) -> Key | None:
    metadata = manifest["metadata"]
    name = metadata.get("labels", {}).get(LABEL)
    return Key(metadata["namespace"], name) if name else None


class View:
    """A KubeCluster at work on one namespace."""

    def __init__(self, client: ApiClient, namespace: str, **options: Any) -> None:
        self.job = Key(namespace, "job")
        self.changes: Counter[Key] = Counter()
        self.reflector = Reflector(
            client,
            PODS.path(namespace=namespace),
            label_selector=LABEL,
            project=project,
            group=group,
            on_change=self._on_change,
            **options,
        )
        self.cluster = KubeCluster(client, job_resource=JOBS, pods=self.reflector)

    def _on_change(self, changed: Key) -> None:
        self.changes[changed] += 1

    def pods(self) -> dict[str, str]:
        return dict(sorted(self.cluster.pods_of(self.job)))

    async def shows(self, expected: dict[str, str]) -> None:
        await eventually(lambda: self.pods() == expected, describe=self.pods)


@contextlib.asynccontextmanager
async def viewing(client: ApiClient, namespace: str, **options: Any) -> AsyncIterator[View]:
    view = View(client, namespace, **options)
    task = asyncio.create_task(view.reflector.run())
    try:
        await view.reflector.wait_synced(timeout_seconds=60)
        yield view
        assert not task.done()
        await view.cluster.close(timeout_seconds=30)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture
async def view(admin: ApiClient, namespace: str) -> AsyncIterator[View]:
    async with viewing(admin, namespace) as started:
        yield started


@pytest.fixture
async def proxy(control_plane: ControlPlane) -> AsyncIterator[TcpProxy]:
    async with TcpProxy(control_plane.server).running() as running:
        yield running


def rewritten(kubeconfig: Path, target: Path, change: Callable[[dict[str, Any]], None]) -> str:
    config = json.loads(kubeconfig.read_text())
    change(config)
    target.write_text(json.dumps(config))
    return str(target)


@pytest.fixture
async def proxied(
    control_plane: ControlPlane, proxy: TcpProxy, tmp_path: Path
) -> AsyncIterator[ApiClient]:
    """A client that reaches the API server through `proxy`."""

    def through_proxy(config: dict[str, Any]) -> None:
        config["clusters"][0]["cluster"]["server"] = proxy.url

    path = rewritten(control_plane.kubeconfig, tmp_path / "proxied", through_proxy)
    async with ApiClient(load_credentials(kubeconfig=path)) as client:
        yield client


@pytest.fixture
async def job(admin: ApiClient, namespace: str) -> dict[str, Any]:
    """The object that owns pods in these tests."""
    manifest = {
        "apiVersion": f"{JOBS.group}/{JOBS.version}",
        "kind": "Ingress",
        "metadata": {"namespace": namespace, "name": "job"},
        "spec": {"defaultBackend": {"service": {"name": "none", "port": {"number": 80}}}},
    }
    created: dict[str, Any] = await admin.request(
        "POST", JOBS.path(namespace=namespace), body=manifest
    )
    return created


def status(address: str) -> dict[str, Any]:
    """A status that the server takes for an Ingress."""
    return {"loadBalancer": {"ingress": [{"ip": address}]}}


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
    with pytest.raises(AlreadyExistsError, match=r"services .*/a exists already and belongs to"):
        await view.cluster.create_service(service)
    await admin.request("POST", PODS.path(namespace=namespace), body=pod(namespace, "b"))
    with pytest.raises(AlreadyExistsError, match="belongs to nobody"):
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
    await view.cluster.patch_pod_labels(Key(namespace, "a"), {"x": "y"})


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


async def test_labels_are_patched_and_move_a_pod(
    view: View, admin: ApiClient, namespace: str
) -> None:
    await view.cluster.create_pod(pod(namespace, "a"))
    await view.cluster.patch_pod_labels(Key(namespace, "a"), {LABEL: "other", "x": "y"})
    assert view.pods() == {}
    assert view.cluster.pods_of(Key(namespace, "other")) == [("a", "Pending")]
    await view.cluster.patch_pod_labels(Key(namespace, "a"), {LABEL: None})
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
    assert view.job in await list_names(admin, JOBS.path(namespace=namespace))
    await view.cluster.delete_job(view.job, uid=job["metadata"]["uid"])
    assert await list_names(admin, JOBS.path(namespace=namespace)) == set()
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


async def test_a_user_without_rights_is_told_what_is_missing(
    control_plane: ControlPlane, admin: ApiClient, namespace: str
) -> None:
    wanted = [
        Permission("create", PODS, namespace=namespace),
        Permission("watch", PODS, namespace=namespace),
        Permission("patch", JOBS, subresource="status", namespace=namespace),
    ]
    path = str(control_plane.kubeconfig_for("operator"))
    async with ApiClient(load_credentials(kubeconfig=path)) as client:
        assert await check_access(client, wanted) == wanted
        with pytest.raises(ForbiddenError, match='User "operator" cannot create resource "pods"'):
            await client.request("POST", PODS.path(namespace=namespace), body=pod(namespace, "a"))
        await grant(admin, namespace, verbs=["create", "watch"], resource=PODS)

        async def only_status_is_missing() -> bool:
            return await check_access(client, wanted) == wanted[2:]

        await eventually(only_status_is_missing)
    assert await check_access(admin, wanted) == []


async def grant(admin: ApiClient, namespace: str, *, verbs: list[str], resource: Resource) -> None:
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    role = {
        "metadata": {"name": "some"},
        "rules": [{"apiGroups": [resource.group], "resources": [resource.plural], "verbs": verbs}],
    }
    binding = {
        "metadata": {"name": "some"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "some"},
        "subjects": [{"kind": "User", "name": "operator", "apiGroup": "rbac.authorization.k8s.io"}],
    }
    await admin.request("POST", f"{rbac}/roles", body=role)
    await admin.request("POST", f"{rbac}/rolebindings", body=binding)


async def test_an_unknown_token_is_refused(control_plane: ControlPlane, tmp_path: Path) -> None:
    def with_wrong_token(config: dict[str, Any]) -> None:
        config["users"][0]["user"]["token"] = "wrong"

    path = rewritten(control_plane.kubeconfig, tmp_path / "wrong", with_wrong_token)
    async with ApiClient(load_credentials(kubeconfig=path)) as client:
        with pytest.raises(ForbiddenError, match="Unauthorized") as raised:
            await client.request("GET", PODS.path())
    assert raised.value.status == 401


async def test_what_is_served_is_known(admin: ApiClient) -> None:
    assert await check_served(admin, JOBS)
    assert await check_served(admin, SERVICES)
    assert not await check_served(admin, JOBS._replace(version="v2"))
    assert not await check_served(admin, JOBS._replace(plural="holidays"))


async def test_lists_come_in_pages(admin: ApiClient, namespace: str) -> None:
    names = [f"p{index:02}" for index in range(25)]
    path = PODS.path(namespace=namespace)
    for name in names:
        await admin.request("POST", path, body=pod(namespace, name))
    assert await list_names(admin, path, page_size=10) == {Key(namespace, n) for n in names}
    async with viewing(admin, namespace, page_size=10) as view:
        assert view.pods() == dict.fromkeys(names, "Pending")
        await admin.request("DELETE", f"{path}/p07")
        await view.shows({name: "Pending" for name in names if name != "p07"})


async def test_a_restart_of_the_api_server_loses_nothing(
    control_plane: ControlPlane, view: View, admin: ApiClient, namespace: str
) -> None:
    await view.cluster.create_pod(pod(namespace, "a"))
    await asyncio.to_thread(control_plane.stop_apiserver)
    with pytest.raises(UnavailableError):
        await view.cluster.create_pod(pod(namespace, "b"))
    assert view.pods() == {"a": "Pending"}
    await asyncio.to_thread(control_plane.start_apiserver)
    path = PODS.path(namespace=namespace)
    await admin.request("POST", path, body=pod(namespace, "c"))
    await admin.request("DELETE", f"{path}/a")
    await view.shows({"c": "Pending"})


async def test_a_version_that_the_server_forgot_is_gone(
    control_plane: ControlPlane, admin: ApiClient, namespace: str
) -> None:
    # A server that has just started remembers nothing from before.
    await asyncio.to_thread(control_plane.restart_apiserver)
    view = View(admin, namespace)
    view.reflector._cache.progress = 1
    with pytest.raises(GoneError, match="too old resource version"):
        await view.reflector._watch()


async def test_what_vanished_while_the_watch_was_cut_and_forgotten_is_reported(
    control_plane: ControlPlane,
    admin: ApiClient,
    proxied: ApiClient,
    proxy: TcpProxy,
    namespace: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="ddp_operator.kube.reflector")
    async with viewing(proxied, namespace) as view:
        for name in ("a", "b"):
            await view.cluster.create_pod(pod(namespace, name))
        await view.shows({"a": "Pending", "b": "Pending"})
        proxy.silence()
        changes = view.changes[view.job]
        path = PODS.path(namespace=namespace)
        await admin.request("DELETE", f"{path}/a")
        await admin.request("POST", path, body=pod(namespace, "c"))
        await asyncio.to_thread(control_plane.restart_apiserver)
        assert view.pods() == {"a": "Pending", "b": "Pending"}
        proxy.cut()
        proxy.resume()
        await view.shows({"b": "Pending", "c": "Pending"})
        assert view.changes[view.job] > changes
    assert "too far behind, listing again" in caplog.text


async def test_a_watch_that_only_looks_alive_is_replaced(
    admin: ApiClient, proxied: ApiClient, proxy: TcpProxy, namespace: str
) -> None:
    async with viewing(proxied, namespace, watch_seconds=3600, watch_slack_seconds=-3598.0) as view:
        await eventually(lambda: proxy.accepted >= 1)
        proxy.silence()
        await admin.request("POST", PODS.path(namespace=namespace), body=pod(namespace, "a"))
        before = proxy.accepted
        await eventually(lambda: proxy.accepted > before)
        proxy.resume()
        await view.shows({"a": "Pending"})


async def test_through_churn_and_cuts_the_view_ends_as_the_truth(
    admin: ApiClient, proxied: ApiClient, proxy: TcpProxy, namespace: str
) -> None:
    """Our own writes, someone else's, and cuts, all at once; never a pod of ours out of sight."""
    dice = random.Random(7)
    path = PODS.path(namespace=namespace)

    async with viewing(proxied, namespace, page_size=5) as view:
        ours = KubeCluster(admin, job_resource=JOBS, pods=view.reflector)

        async def we(index: int) -> None:
            for step in range(6):
                name = f"ours-{index}-{step}"
                await ours.create_pod(pod(namespace, name, node="node-1"))
                assert view.pods()[name] == "Pending"
                if dice.random() < 0.5:
                    await ours.delete_pod(Key(namespace, name), grace_seconds=30)
                    assert view.pods()[name] == "Terminating"

        async def they(index: int) -> None:
            for step in range(6):
                name = f"theirs-{index}-{step}"
                await admin.request("POST", path, body=pod(namespace, name))
                if dice.random() < 0.5:
                    await admin.request("DELETE", f"{path}/{name}")

        async def the_network(work: "asyncio.Future[Any]") -> None:
            while not work.done():
                proxy.cut()
                await asyncio.sleep(dice.uniform(0.02, 0.2))

        everyone: list[Awaitable[None]] = [we(i) for i in range(5)]
        everyone += [they(i) for i in range(5)]
        work = asyncio.gather(*everyone)
        await asyncio.gather(work, the_network(work))
        truth = (await admin.request("GET", path))["items"]
        await view.shows(dict(project(manifest) for manifest in truth))
        assert len(truth) >= 30
