"""The real Kueue as the subject of the scenarios in `tests/simulation/kueue_contract.py`."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from ddp_operator.kube import PODS, ApiClient
from ddp_operator.kube.client import MERGE_PATCH
from ddp_operator.ports import AlreadyExistsError, Manifest, NotFoundError

from tests.integration.kubelet import FakeKubelet
from tests.integration.queues.queue import WORKLOADS
from tests.waiting import eventually


class RealKueue:
    """Implements `kueue_contract.Subject` with a namespace of the control plane."""

    def __init__(self, client: ApiClient, namespace: str, kubelet: FakeKubelet) -> None:
        self.client = client
        self.namespace = namespace
        self._kubelet = kubelet

    async def create_workload(self, manifest: Manifest) -> None:
        path = WORKLOADS.path(namespace=self.namespace)
        with contextlib.suppress(AlreadyExistsError):  # by a repeated attempt
            await self.client.request("POST", path, body=manifest)

    async def workload(self, name: str) -> Manifest | None:
        path = WORKLOADS.path(namespace=self.namespace, name=name)
        try:
            stored: Manifest = await self.client.request("GET", path)
        except NotFoundError:
            return None
        return stored

    async def change(self, name: str, **spec: Any) -> None:
        path = WORKLOADS.path(namespace=self.namespace, name=name)
        await self._patch(path, {"spec": spec})

    async def patch_status(self, name: str, status: Manifest) -> None:
        path = WORKLOADS.path(namespace=self.namespace, name=name, subresource="status")
        await self._patch(path, {"status": status})

    async def delete_workload(self, name: str) -> None:
        path = WORKLOADS.path(namespace=self.namespace, name=name)
        await self.client.request("DELETE", path)

    async def create_pod(self, manifest: Manifest) -> None:
        await self.client.request("POST", PODS.path(namespace=self.namespace), body=manifest)

    async def pods(self) -> dict[str, Manifest]:
        answer = await self.client.request("GET", PODS.path(namespace=self.namespace))
        return {item["metadata"]["name"]: item for item in answer["items"]}

    async def end_pod(self, name: str, *, exit_code: int) -> None:
        if exit_code:
            await self._kubelet.fail(name, exit_code=exit_code)
        else:
            await self._kubelet.succeed(name)

    async def mark_pod(self, name: str, **annotations: str) -> None:
        path = PODS.path(namespace=self.namespace, name=name)
        await self._patch(path, {"metadata": {"annotations": annotations}})

    async def eventually(self, holds: Callable[[], Awaitable[object]]) -> None:
        stored: dict[str, Any] = {}

        async def condition() -> bool:
            if await holds():
                return True
            answer = await self.client.request("GET", WORKLOADS.path(namespace=self.namespace))
            stored.update({one["metadata"]["name"]: one.get("status") for one in answer["items"]})
            return False

        await eventually(condition, interval_seconds=0.05, describe=lambda: stored)

    async def pass_time(self) -> None:
        await asyncio.sleep(0.5)

    async def _patch(self, path: str, body: Manifest) -> None:
        await self.client.request("PATCH", path, body=body, content_type=MERGE_PATCH)
