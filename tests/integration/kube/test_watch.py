"""The view of the pods becomes correct again after faults of server and connections."""

import asyncio
import random
from collections.abc import Awaitable
from typing import Any

import pytest
from ddp_operator.kube import PODS, ApiClient, KubeCluster, list_uids
from ddp_operator.kube.errors import GoneError
from ddp_operator.ports import Key, UnavailableError

from tests.cluster import ControlPlane
from tests.integration.http_proxy import HttpProxy
from tests.integration.kube.view import JOBS, View, pod, project, viewing
from tests.waiting import eventually


async def test_lists_are_read_in_pages(admin: ApiClient, namespace: str) -> None:
    names = [f"p{index:02}" for index in range(25)]
    path = PODS.path(namespace=namespace)
    for name in names:
        await admin.request("POST", path, body=pod(namespace, name))
    assert set(await list_uids(admin, path, page_size=10)) == {Key(namespace, n) for n in names}
    async with viewing(admin, namespace, page_size=10) as view:
        assert view.pods() == dict.fromkeys(names, "Pending")
        await admin.request("DELETE", f"{path}/p07")
        await view.shows({name: "Pending" for name in names if name != "p07"})


async def test_restarted_server_loses_nothing_and_has_no_old_versions(
    control_plane: ControlPlane, view: View, admin: ApiClient, namespace: str
) -> None:
    await view.cluster.create_pod(pod(namespace, "a"))
    await asyncio.to_thread(control_plane.stop_apiserver)
    with pytest.raises(UnavailableError):
        await view.cluster.create_pod(pod(namespace, "b"))
    assert view.pods() == {"a": "Pending"}
    await asyncio.to_thread(control_plane.start_apiserver)
    # A server that has just started remembers no earlier version.
    late = View(admin, namespace)
    late.reflector._cache.version = 1
    with pytest.raises(GoneError, match="too old resource version"):
        await late.reflector._watch()
    path = PODS.path(namespace=namespace)
    await admin.request("POST", path, body=pod(namespace, "c"))
    await admin.request("DELETE", f"{path}/a")
    await view.shows({"c": "Pending"})


async def test_changes_during_a_cut_and_expired_watch_are_reported(
    control_plane: ControlPlane,
    admin: ApiClient,
    proxied: ApiClient,
    proxy: HttpProxy,
    namespace: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="ddp_operator.kube.view.reflector")
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


async def test_silent_watch_is_replaced(
    admin: ApiClient, proxied: ApiClient, proxy: HttpProxy, namespace: str
) -> None:
    async with viewing(proxied, namespace, watch_seconds=3600, watch_slack_seconds=-3598.0) as view:
        await eventually(lambda: proxy.accepted >= 1)
        proxy.silence()
        await admin.request("POST", PODS.path(namespace=namespace), body=pod(namespace, "a"))
        before = proxy.accepted
        await eventually(lambda: proxy.accepted > before)
        proxy.resume()
        await view.shows({"a": "Pending"})


async def test_view_is_correct_after_churn_and_cuts(
    admin: ApiClient, proxied: ApiClient, proxy: HttpProxy, namespace: str
) -> None:
    """Write pods here and elsewhere during cuts; the view never misses a pod of its own client."""
    dice = random.Random(7)
    path = PODS.path(namespace=namespace)

    async with viewing(proxied, namespace, page_size=5) as view:
        ours = KubeCluster(admin, job_resource=JOBS, pods=view.reflector)

        async def write_here(index: int) -> None:
            for step in range(6):
                name = f"ours-{index}-{step}"
                await ours.create_pod(pod(namespace, name, node="node-1"))
                assert view.pods()[name] == "Pending"
                if dice.random() < 0.5:
                    await ours.delete_pod(Key(namespace, name), grace_seconds=30)
                    assert view.pods()[name] == "Terminating"

        async def write_elsewhere(index: int) -> None:
            for step in range(6):
                name = f"theirs-{index}-{step}"
                await admin.request("POST", path, body=pod(namespace, name))
                if dice.random() < 0.5:
                    await admin.request("DELETE", f"{path}/{name}")

        async def cut_until_done(work: "asyncio.Future[Any]") -> None:
            while not work.done():
                proxy.cut()
                await asyncio.sleep(dice.uniform(0.02, 0.2))

        writers: list[Awaitable[None]] = [write_here(i) for i in range(5)]
        writers += [write_elsewhere(i) for i in range(5)]
        work = asyncio.gather(*writers)
        await asyncio.gather(work, cut_until_done(work))
        stored = (await admin.request("GET", path))["items"]
        await view.shows(dict(project(manifest) for manifest in stored))
        assert len(stored) >= 30
