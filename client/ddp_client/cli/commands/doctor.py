"""The command `doctor`."""

from collections.abc import Awaitable
from typing import Final, TypeVar

import click
from ddp_operator import __version__
from ddp_operator.api.constants import OPERATOR_NAMESPACE
from ddp_operator.api.schema import crd
from ddp_operator.kube import (
    CUSTOM_RESOURCE_DEFINITIONS,
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    ApiClient,
    Permission,
    Resource,
    check_access,
    check_served,
)
from ddp_operator.ports import ClusterError, ForbiddenError, Manifest

from ddp_client.cli.app import connection_options, on_cluster, print_lines, width
from ddp_client.remote.cluster import DEPLOYMENTS, JOBS, OF_THE_OPERATOR, Cluster, listed
from ddp_client.views.doctor import Facts, Unknown, examine, shown
from ddp_client.views.doctor.resources import NATIVE

T = TypeVar("T")

_LIMITS: Final = Resource("", "v1", "limitranges")
_STORAGE: Final = Resource("storage.k8s.io", "v1", "storageclasses")
_KUEUE: Final = "kueue.x-k8s.io"
_GROUPS: Final = {
    "Kueue": _KUEUE,
    "coscheduling": "scheduling.x-k8s.io",
    "KAI": "scheduling.run.ai",
}
_DOMAINS: Final = "resource.nvidia.com"
_NATIVE_GANGS: Final = Resource("scheduling.k8s.io", "v1beta1", "podgroups")
_RIGHTS: Final = (
    *((JOBS, verb, "") for verb in ("get", "list", "create", "patch", "delete")),
    *((PODS, verb, "") for verb in ("get", "list")),
    (PODS, "get", "log"),
    *((PODS, verb, sub) for sub in ("exec", "portforward") for verb in ("get", "create")),
    (EVENTS, "list", ""),
)
"""The rights that all commands need together; `create` is for kubectl's own connections."""


@click.command()
@connection_options
def doctor() -> None:
    """Check whether jobs can run in this cluster and namespace.

    Checks the cluster, the CRD, the operator, your rights, GPUs, shared memory, schedulers and
    storage; changes nothing. A check that you lack the right for is "not known", not a failure.
    Exit code 1: a check failed.
    """
    facts = on_cluster(gather)
    findings = examine(facts)
    print_lines(shown(findings, width()))
    if any(each.level == "fail" for each in findings):
        click.get_current_context().exit(1)


async def gather(cluster: Cluster, namespace: str) -> Facts:
    """Read all facts; a fact that cannot be read is unknown."""
    client = cluster.client
    # This first request fails the command when there is no server.
    version: Manifest = await client.request("GET", "/version")
    groups = await _or_unknown(_groups(client))
    installed = CUSTOM_RESOURCE_DEFINITIONS.path(name=crd.NAME)
    schedulers: dict[str, bool | Unknown] = {
        name: groups if isinstance(groups, Unknown) else group in groups
        for name, group in _GROUPS.items()
    }
    schedulers[NATIVE] = await _or_unknown(check_served(client, _NATIVE_GANGS))
    pods = await _or_unknown(cluster.gpu_pods())
    return Facts(
        namespace=namespace,
        release=__version__,
        version=version,
        served=await _or_unknown(check_served(client, JOBS)),
        crd=await _or_unknown(client.request("GET", installed)),
        operators=await _operators(client),
        missing=await _or_unknown(_missing(client, namespace)),
        nodes=await _or_unknown(listed(client, NODES.path())),
        pods=None if isinstance(pods, Unknown) else pods,
        limits=await _or_unknown(listed(client, _LIMITS.path(namespace=namespace))),
        labels=await _or_unknown(_labels(client, namespace)),
        storage=await _or_unknown(listed(client, _STORAGE.path())),
        schedulers=schedulers,
        domains=groups if isinstance(groups, Unknown) else _DOMAINS in groups,
        queues=await _queues(client, groups, namespace),
    )


async def _labels(client: ApiClient, namespace: str) -> dict[str, str]:
    stored = await client.request("GET", NAMESPACES.path(name=namespace))
    return stored["metadata"].get("labels") or {}


async def _groups(client: ApiClient) -> dict[str, str]:
    """Return the API groups, each with the server's preferred version."""
    answer = await client.request("GET", "/apis")
    return {each["name"]: each["preferredVersion"]["version"] for each in answer["groups"]}


async def _queues(
    client: ApiClient, groups: dict[str, str] | Unknown, namespace: str
) -> list[str] | Unknown:
    if isinstance(groups, Unknown) or _KUEUE not in groups:
        return []
    queues = Resource(_KUEUE, groups[_KUEUE], "localqueues")
    objects = await _or_unknown(listed(client, queues.path(namespace=namespace)))
    return (
        objects if isinstance(objects, Unknown) else [each["metadata"]["name"] for each in objects]
    )


async def _or_unknown(answer: Awaitable[T]) -> T | Unknown:
    try:
        return await answer
    except ForbiddenError:
        return Unknown("you may not read it")
    except ClusterError as error:
        return Unknown(error.message)


async def _operators(client: ApiClient) -> list[Manifest] | Unknown:
    """Return the operator's Deployments of all namespaces, or only of the default one."""
    deployments = await _or_unknown(listed(client, DEPLOYMENTS.path(), OF_THE_OPERATOR))
    if not isinstance(deployments, Unknown):
        return deployments
    path = DEPLOYMENTS.path(namespace=OPERATOR_NAMESPACE)
    usual = await _or_unknown(listed(client, path, OF_THE_OPERATOR))
    # Not found there, and the user may not read the others: unknown, not missing.
    return usual or deployments


async def _missing(client: ApiClient, namespace: str) -> list[str]:
    wanted = [Permission(verb, kind, sub, namespace) for kind, verb, sub in _RIGHTS]
    return [str(each) for each in await check_access(client, wanted)]
