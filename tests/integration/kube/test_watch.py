"""The view of the pods is the truth in the end, whatever happens to server and connections."""

import asyncio
import random
from collections.abc import Awaitable
from typing import Any

import pytest
from ddp_operator.kube import (
    PODS,
    ApiClient,
    KubeCluster,
    list_uids,
)
from ddp_operator.kube.errors import GoneError
from ddp_operator.ports import (
    Key,
    UnavailableError,
)

from tests.cluster import ControlPlane
from tests.integration.kube.view import (
    JOBS,
    View,
    pod,
    project,
    viewing,
)
from tests.integration.tcp_proxy import TcpProxy
from tests.waiting import eventually


async def test_lists_come_in_pages(admin: ApiClient, namespace: str) -> None:
    names = [f"p{index:02}" for index in range(25)]
    path = PODS.path(namespace=namespace)
    for name in names:
        await admin.request("POST", path, body=pod(namespace, name))
    assert set(await list_uids(admin, path, page_size=10)) == {Key(namespace, n) for n in names}
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
    view.reflector._cache.version = 1
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
