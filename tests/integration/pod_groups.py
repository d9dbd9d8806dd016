"""Minimal CRDs for the PodGroups of gang schedulers.

Kubernetes' own PodGroups are built in, and a server serves no CRD in a built-in group.
"""

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Final

from ddp_operator.kube import ApiClient, Resource, check_served
from ddp_operator.ports import NotFoundError

from tests.good_manifests import Json
from tests.integration.conftest import CRDS
from tests.waiting import eventually

COSCHEDULING: Final = Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups")
KAI: Final = Resource("scheduling.run.ai", "v2alpha2", "podgroups")
NATIVE: Final = Resource("scheduling.k8s.io", "v1beta1", "podgroups")

_COUNT: Final = {"type": "integer", "minimum": 1}
_TEXT: Final = {"type": "string"}
_SPECS: Final[dict[Resource, dict[str, Any]]] = {
    COSCHEDULING: {"minMember": _COUNT, "scheduleTimeoutSeconds": {"type": "integer"}},
    # With the types that KAI's own CRD has, for the fields that the operator writes.
    KAI: {
        "minMember": _COUNT,
        "queue": _TEXT,
        "priorityClassName": _TEXT,
        "stalenessGracePeriod": _TEXT,
    },
}


async def group_of(admin: ApiClient, resource: Resource, namespace: str) -> Json | None:
    """Return the only PodGroup of a namespace, or None."""
    groups = (await admin.request("GET", resource.path(namespace=namespace)))["items"]
    assert len(groups) <= 1
    return groups[0] if groups else None


async def install(admin: ApiClient, resource: Resource) -> None:
    """Install the CRD of a scheduler's PodGroups, and wait until it is served."""
    version = {
        "name": resource.version,
        "served": True,
        "storage": True,
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "properties": {"spec": {"type": "object", "properties": _SPECS[resource]}},
            }
        },
    }
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": str(resource)},
        "spec": {
            "group": resource.group,
            "names": {"kind": "PodGroup", "plural": resource.plural, "singular": "podgroup"},
            "scope": "Namespaced",
            "versions": [version],
        },
    }
    await admin.request("POST", CRDS, body=definition)
    await eventually(partial(check_served, admin, resource), interval_seconds=0.05)


async def remove(admin: ApiClient, resource: Resource) -> None:
    """Remove the CRD with all PodGroups, and wait until it may be installed again."""
    path = f"{CRDS}/{resource}"
    await admin.request("DELETE", path)

    async def gone() -> bool:
        try:
            await admin.request("GET", path)
        except NotFoundError:
            return True
        return False

    await eventually(gone, interval_seconds=0.05)


@contextlib.asynccontextmanager
async def served(admin: ApiClient, resource: Resource) -> AsyncIterator[None]:
    """Serve a scheduler's PodGroups during the block."""
    await install(admin, resource)
    try:
        yield
    finally:
        await remove(admin, resource)
