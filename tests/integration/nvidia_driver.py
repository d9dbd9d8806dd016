"""NVIDIA's driver for ComputeDomains, as far as the operator and the scheduler see it.

From cmd/compute-domain-controller of https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu
(August 2026): it keeps a finalizer on each domain and creates the claim template that the domain
names. As soon as a domain's deletion is requested, it stops the daemons of all nodes, whatever pods
run there.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Final

from ddp_operator.api.constants import LABEL_JOB_UID
from ddp_operator.job.pods.prerequisites import COMPUTE_DOMAIN
from ddp_operator.kube import PODS, ApiClient, Resource, check_served
from ddp_operator.kube.client import MERGE_PATCH
from ddp_operator.kube.resources import resource_of
from ddp_operator.ports import AlreadyExistsError, ClusterError, NotFoundError

from tests.good_manifests import Json
from tests.integration.conftest import CRDS
from tests.waiting import eventually

DOMAINS: Final = resource_of(COMPUTE_DOMAIN)
CLASSES: Final = Resource("resource.k8s.io", "v1", "deviceclasses")
SLICES: Final = Resource("resource.k8s.io", "v1", "resourceslices")
TEMPLATES: Final = Resource("resource.k8s.io", "v1", "resourceclaimtemplates")

_FINALIZER: Final = "resource.nvidia.com/computeDomain"
_CHANNELS: Final = "compute-domain-default-channel.nvidia.com"
_DRIVERS: Final = {_CHANNELS: "compute-domain.nvidia.com", "mrdma.google.com": "net.example.com"}
"""The driver of each device class."""
_SPEC: Final[Json] = {
    "type": "object",
    "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "the spec is immutable"}],
    "properties": {
        "numNodes": {"type": "integer", "minimum": 0, "default": 0},
        "channel": {
            "type": "object",
            "required": ["resourceClaimTemplate"],
            "properties": {
                "allocationMode": {"type": "string", "default": "Single"},
                "resourceClaimTemplate": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {"name": {"type": "string"}},
                },
            },
        },
    },
}


async def install(admin: ApiClient) -> None:
    """Install the CRD and the device classes, and wait until domains are served."""
    await install_domains(admin)
    for name, driver in _DRIVERS.items():
        selectors = [{"cel": {"expression": f"device.driver == '{driver}'"}}]
        body = {"metadata": {"name": name}, "spec": {"selectors": selectors}}
        await admin.request("POST", CLASSES.path(), body=_typed(CLASSES, "DeviceClass", body))


async def install_domains(admin: ApiClient) -> None:
    """Install the CRD, and wait until it is served."""
    version = {
        **{"name": DOMAINS.version, "served": True, "storage": True},
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": _SPEC}}},
    }
    names = {"kind": "ComputeDomain", "plural": DOMAINS.plural, "singular": "computedomain"}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": str(DOMAINS)},
        "spec": {
            **{"group": DOMAINS.group, "scope": "Namespaced"},
            **{"names": names, "versions": [version]},
        },
    }
    await admin.request("POST", CRDS, body=definition)
    await eventually(partial(check_served, admin, DOMAINS), interval_seconds=0.05)


async def publish(admin: ApiClient, node: str, *, cards: int) -> None:
    """Publish the devices of a node: its network cards, and a channel."""
    for count, driver in ((1, _DRIVERS[_CHANNELS]), (cards, _DRIVERS["mrdma.google.com"])):
        name = f"{node}-{driver}"
        spec = {
            **{"driver": driver, "nodeName": node},
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": f"device-{number}"} for number in range(count)],
        }
        body = _typed(SLICES, "ResourceSlice", {"metadata": {"name": name}, "spec": spec})
        await admin.request("POST", SLICES.path(), body=body)


async def domain_of(admin: ApiClient, namespace: str, name: str = "job") -> Json | None:
    """Return the domain of a job, or None."""
    try:
        found: Json = await admin.request("GET", DOMAINS.path(namespace=namespace, name=name))
    except NotFoundError:
        return None
    return found


class Driver:
    """Tends all domains; `cut` lists pods that lost their connections."""

    def __init__(self, admin: ApiClient) -> None:
        self._admin = admin
        self.cut: list[str] = []

    async def _run(self) -> None:
        while True:
            listed = await self._admin.request("GET", DOMAINS.path())
            for domain in listed["items"]:
                with contextlib.suppress(ClusterError):  # it, or its namespace, ends
                    await self._tend(domain)
            await asyncio.sleep(0.2)

    async def _tend(self, domain: Json) -> None:
        metadata = domain["metadata"]
        namespace = metadata["namespace"]
        path = DOMAINS.path(namespace=namespace, name=metadata["name"])
        template = domain["spec"]["channel"]["resourceClaimTemplate"]["name"]
        if "deletionTimestamp" in metadata:
            params = {"labelSelector": f"{LABEL_JOB_UID}={metadata['labels'][LABEL_JOB_UID]}"}
            pods = await self._admin.request("GET", PODS.path(namespace=namespace), params=params)
            self.cut += [pod["metadata"]["name"] for pod in pods["items"]]
            with contextlib.suppress(NotFoundError):
                await self._admin.request(
                    "DELETE", TEMPLATES.path(namespace=namespace, name=template)
                )
            body: Json = {"metadata": {"finalizers": None}}
            await self._admin.request("PATCH", path, body=body, content_type=MERGE_PATCH)
        elif not metadata.get("finalizers"):
            request = {"name": "channel", "exactly": {"deviceClassName": _CHANNELS}}
            spec = {"spec": {"devices": {"requests": [request]}}}
            body = {"metadata": {"name": template}, "spec": spec}
            with contextlib.suppress(AlreadyExistsError):
                await self._admin.request(
                    "POST",
                    TEMPLATES.path(namespace=namespace),
                    body=_typed(TEMPLATES, "ResourceClaimTemplate", body),
                )
            body = {"metadata": {"finalizers": [_FINALIZER]}}
            await self._admin.request("PATCH", path, body=body, content_type=MERGE_PATCH)


@contextlib.asynccontextmanager
async def running(admin: ApiClient) -> AsyncIterator[Driver]:
    """Run the driver during the block."""
    driver = Driver(admin)
    task = asyncio.create_task(driver._run())
    try:
        yield driver
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _typed(resource: Resource, kind: str, body: Json) -> dict[str, Any]:
    return {"apiVersion": f"{resource.group}/{resource.version}", "kind": kind, **body}
