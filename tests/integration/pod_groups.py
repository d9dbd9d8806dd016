"""The PodGroups of gang schedulers, as the smallest CRDs that they could bring."""

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Final

from ddp_operator.kube import ApiClient, Resource, check_served

from tests.integration.conftest import CRDS
from tests.waiting import eventually

COSCHEDULING: Final = Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups")
VOLCANO: Final = Resource("scheduling.volcano.sh", "v1beta1", "podgroups")


@contextlib.asynccontextmanager
async def served(admin: ApiClient, resource: Resource) -> AsyncIterator[None]:
    """Have the server know PodGroups for the length of the block."""
    name = f"{resource.plural}.{resource.group}"
    version = {
        "name": resource.version,
        "served": True,
        "storage": True,
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "properties": {
                    "spec": {
                        "type": "object",
                        "properties": {
                            "minMember": {"type": "integer", "minimum": 1},
                            "queue": {"type": "string"},
                            "scheduleTimeoutSeconds": {"type": "integer"},
                        },
                    }
                },
            }
        },
    }
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name},
        "spec": {
            "group": resource.group,
            "names": {"kind": "PodGroup", "plural": resource.plural, "singular": "podgroup"},
            "scope": "Namespaced",
            "versions": [version],
        },
    }
    await admin.request("POST", CRDS, body=definition)
    try:
        await eventually(partial(check_served, admin, resource), interval_seconds=0.05)
        yield
    finally:
        await admin.request("DELETE", f"{CRDS}/{name}")
