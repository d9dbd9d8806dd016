"""Checks at start-up, so that a missing CRD or permission is reported once and clearly.

Without them a missing permission would first show as a job without pods.
"""

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from ddp_operator.kube.client import ApiClient
from ddp_operator.kube.resources import Resource
from ddp_operator.ports import NotFoundError

_ACCESS_REVIEWS = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews")


class Permission(NamedTuple):
    """One permission that the operator needs; without a namespace, in all of them."""

    verb: str
    resource: Resource
    subresource: str = ""
    namespace: str | None = None
    name: str = ""
    """Name of the only object concerned; empty for all."""

    def __str__(self) -> str:
        resource = str(self.resource)
        if self.subresource:
            plural, dot, group = resource.partition(".")
            resource = f"{plural}/{self.subresource}{dot}{group}"
        where = f"in namespace {self.namespace}" if self.namespace else "in all namespaces"
        name = f" {self.name}" if self.name else ""
        return f"{self.verb} {resource}{name} {where}"


async def check_access(client: ApiClient, permissions: Iterable[Permission]) -> list[Permission]:
    """Return the missing permissions, in the given order."""
    wanted = list(permissions)
    allowed = await asyncio.gather(*(_is_allowed(client, permission) for permission in wanted))
    return [permission for permission, yes in zip(wanted, allowed, strict=True) if not yes]


async def _is_allowed(client: ApiClient, permission: Permission) -> bool:
    attributes = {
        "verb": permission.verb,
        "group": permission.resource.group,
        "resource": permission.resource.plural,
        "subresource": permission.subresource,
        "namespace": permission.namespace or "",
        "name": permission.name,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = await client.request("POST", _ACCESS_REVIEWS.path(), body=review)
    return bool(answer["status"].get("allowed"))


async def check_served(client: ApiClient, resource: Resource) -> bool:
    """Return whether the server has this version of the resource, that is, whether its
    CRD exists.
    """
    try:
        answer = await client.request("GET", resource.root)
    except NotFoundError:
        return False
    return any(entry["name"] == resource.plural for entry in answer.get("resources", ()))
