"""What the operator makes sure of before it works: that it is served and allowed all it needs.

Nothing of this may end a process that is only too early: the API server may be away for a while,
and a container that ends again and again is started ever more rarely.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from socket import gethostname
from typing import Final, TypeVar

from ddp_operator import __version__
from ddp_operator.api import kubernetes
from ddp_operator.api.constants import VERSION
from ddp_operator.api.schema import crd
from ddp_operator.api.schema.comparison import Difference, compare
from ddp_operator.handlers import JOBS
from ddp_operator.job.pods.access import Access
from ddp_operator.job.pods.fabrics import DEFAULT_SIDE_CARS, SideCars
from ddp_operator.kube import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    EVENTS,
    LEASES,
    NETWORK_POLICIES,
    NODES,
    PODS,
    SECRETS,
    SERVICES,
    SUBJECT_ACCESS_REVIEWS,
    TOKEN_REVIEWS,
    ApiClient,
    Permission,
    check_access,
    check_served,
    own_secret,
)
from ddp_operator.ports import ForbiddenError, Key, NotFoundError, UnavailableError

logger = logging.getLogger(__name__)

T = TypeVar("T")

SERVER_SECONDS: Final = 300.0
"""How long the API server may be away when the operator starts; as long as Kubernetes itself
tolerates an unreachable node by default."""
_RETRY_SECONDS: Final = 2.0
_SETTLE_SECONDS: Final = 30.0
"""A server that has just started answers before it has read all CRDs and roles."""

_NEEDED: Final = (
    (JOBS, ("list", "watch", "delete"), ""),
    (JOBS, ("patch",), "status"),
    (PODS, ("list", "watch", "get", "create", "patch", "delete"), ""),
    (SERVICES, ("get", "create"), ""),
    (NETWORK_POLICIES, ("get", "create", "update", "delete"), ""),
    (EVENTS, ("create",), ""),
)
"""All that the operator asks of the API server about jobs; the manifests grant exactly this."""

_CONTAINER: Final = "operator"
"""The name of its own container, in all manifests."""

SECRET_NAME: Final = "ddp-operator-tokens"
"""Of the Secret in the operator's own namespace from which the tokens of all jobs come;
`manifests/install` grants `get` on no other."""

SIDE_CARS_NAME: Final = "ddp-operator-side-cars"
"""Of the ConfigMap in the operator's own namespace that an administrator may write;
`manifests/install` grants `get` on no other."""

_NEEDED_TO_LEAD: Final = ("get", "update")
"""What leader election needs on top, besides creating it: verbs on its own Lease."""

_NODE_VERBS: Final = ("list", "watch")
"""What avoiding bad nodes needs, in the whole cluster; the operator works without."""

READ_CRD: Final = Permission("get", CUSTOM_RESOURCE_DEFINITIONS, name=crd.NAME)
"""What comparing the CRD with this release's needs; the operator works without."""
_NAMED: Final = 5
"""Fields of a CRD that a line in the log names."""

NEEDED_TO_REVIEW: Final = (
    Permission("create", TOKEN_REVIEWS),
    Permission("create", SUBJECT_ACCESS_REVIEWS),
)
"""What it takes to find out who asks for metrics, and whether he may see them."""

_RIGHTS: Final = "manifests/install/rbac.yaml"
_RIGHTS_IN_ONE_NAMESPACE: Final = "manifests/components/one-namespace/rbac.yaml"
_RIGHTS_TO_REVIEW: Final = "manifests/components/metrics-auth/rbac.yaml"
"""Where people find what to grant."""


class StartupError(Exception):
    """The operator cannot work here; the message says in one line what is missing."""


async def when_reachable(look: Callable[[], Awaitable[T]], *, seconds: float = SERVER_SECONDS) -> T:
    """Return what `look` returns as soon as the API server answers it.

    Raises:
        UnavailableError: it has not answered within `seconds`.
        StartupError: of `look`; from a server that has just come back only if it is its last word.
    """
    now = asyncio.get_running_loop().time
    end, settled_at = now() + seconds, now()
    while True:
        try:
            return await look()
        except UnavailableError as error:
            if now() >= end:
                raise
            logger.warning("waiting for the API server: %s", error.message)
            settled_at = now() + _SETTLE_SECONDS
        except StartupError as error:
            if now() >= settled_at:
                raise
            logger.warning("waiting for the API server, which has just started: %s", error)
        await asyncio.sleep(_RETRY_SECONDS)


async def check(
    client: ApiClient, namespace: str | None, *, secret: Key, lease: Key | None = None
) -> None:
    """Find out at once what would otherwise show as a job that never starts.

    Raises:
        StartupError: the API server is too old, or the CRD or a permission is missing.
    """
    await _require_release(client)
    if not await check_served(client, JOBS):
        raise StartupError(
            f"the API server does not serve {JOBS} {VERSION}: install the CRD first "
            "(kubectl apply -f crds/ddpjobs.yaml)"
        )
    rights = _RIGHTS_IN_ONE_NAMESPACE if namespace else _RIGHTS
    await _require(client, needed(namespace, secret=secret, lease=lease), rights)


async def _require_release(client: ApiClient) -> None:
    """Refuse an API server that drops fields or rules; one that hides its version is accepted."""
    try:
        told = str((await client.request("GET", "/version")).get("gitVersion"))
    except ForbiddenError as error:
        logger.info("the version of the API server is not known: %s", error.message)
        return
    release = kubernetes.release(told)
    if release and release < kubernetes.OLDEST:
        oldest = kubernetes.in_words(kubernetes.OLDEST)
        raise StartupError(
            f"Kubernetes {told} is too old: upgrade the cluster to Kubernetes {oldest} or later"
        )


def needed(namespace: str | None, *, secret: Key, lease: Key | None) -> list[Permission]:
    """Return what the operator cannot do without, in one namespace or in all."""
    permissions = [
        Permission(verb, resource, subresource, namespace)
        for resource, verbs, subresource in _NEEDED
        for verb in verbs
    ]
    permissions.append(Permission("create", SECRETS, "", secret.namespace))
    permissions.append(Permission("get", SECRETS, "", secret.namespace, secret.name))
    permissions.append(Permission("get", CONFIG_MAPS, "", secret.namespace, SIDE_CARS_NAME))
    if lease is not None:
        permissions.append(Permission("create", LEASES, "", lease.namespace))
        permissions += [
            Permission(verb, LEASES, "", lease.namespace, lease.name) for verb in _NEEDED_TO_LEAD
        ]
    return permissions


def create_token_secrets(namespace: str | None) -> Permission:
    """Return what it takes to keep tokens out of pods, in one namespace or in all; the operator
    works without.
    """
    return Permission("create", SECRETS, "", namespace)


async def check_reviews(client: ApiClient) -> None:
    """Find out at once whether metrics can be had at all where they are not for everybody.

    Raises:
        StartupError: a permission is missing.
    """
    await _require(client, NEEDED_TO_REVIEW, _RIGHTS_TO_REVIEW)


async def _require(client: ApiClient, permissions: Iterable[Permission], rights: str) -> None:
    missing = await check_access(client, permissions)
    if missing:
        raise StartupError(
            f"missing permissions (see {rights}): "
            + "; ".join(str(permission) for permission in missing)
        )


async def access(client: ApiClient, secret: Key, *, namespace: str | None) -> Access:
    """Read what the tokens of jobs come from, which the first replica ever makes up, and find out
    whether Secrets may be created in the `namespace` that is served, or in all.

    Raises:
        StartupError: the Secret holds something else.
    """
    try:
        found = await own_secret(client, secret)
    except ValueError as error:
        raise StartupError(str(error)) from None
    right = create_token_secrets(namespace)
    if missing := await check_access(client, [right]):
        logger.warning(
            "the tokens of jobs are in plain text in their pods, for want of a permission: %s",
            "; ".join(str(permission) for permission in missing),
        )
    return Access(
        secret=found,
        operator_namespace=client.credentials.pod_namespace,
        has_secrets=not missing,
    )


async def side_cars(client: ApiClient, namespace: str) -> SideCars:
    """Read which images an administrator wants for the side cars of fabrics.

    Raises:
        StartupError: the ConfigMap holds something else.
    """
    path = CONFIG_MAPS.path(namespace=namespace, name=SIDE_CARS_NAME)
    try:
        found = await client.request("GET", path)
    except NotFoundError:
        return DEFAULT_SIDE_CARS
    try:
        return SideCars.read(found.get("data") or {})
    except ValueError as error:
        raise StartupError(f"the ConfigMap {Key(namespace, SIDE_CARS_NAME)}: {error}") from None


async def own_image(client: ApiClient) -> str:
    """The image that this operator runs from; empty where it cannot know: outside of a cluster, or
    where it may not read its own pod.
    """
    namespace = client.credentials.pod_namespace
    if namespace is None:
        return ""
    try:
        found = await client.request("GET", PODS.path(namespace=namespace, name=gethostname()))
    except (ForbiddenError, NotFoundError):
        return ""
    containers = found["spec"]["containers"]
    return next((str(each["image"]) for each in containers if each["name"] == _CONTAINER), "")


async def may_see_nodes(client: ApiClient) -> bool:
    """Whether it may; the operator works without, and says what it will not do then."""
    missing = await check_access(client, [Permission(verb, NODES) for verb in _NODE_VERBS])
    if missing:
        logger.info(
            "jobs will not avoid bad nodes, for want of a permission: %s",
            "; ".join(str(permission) for permission in missing),
        )
    return not missing


async def crd_difference(client: ApiClient) -> Difference:
    """Find out whether the CRD is of another release, and say so; the operator works with either,
    and jobs that it does not understand are left as they are.
    """
    if await check_access(client, [READ_CRD]):
        logger.info(
            "a CRD of another release will be told by what it does to jobs alone, for want of a "
            "permission: %s",
            READ_CRD,
        )
        return Difference()
    path = CUSTOM_RESOURCE_DEFINITIONS.path(name=crd.NAME)
    try:
        found = compare(await client.request("GET", path))
    except NotFoundError:  # whoever serves the jobs, it is no CRD
        return Difference()
    if found.lacking:
        logger.error(
            "the CRD is older than this operator, and the API server drops or refuses %s: "
            "apply the CRD of this release, %s (kubectl apply -f crds/ddpjobs.yaml)",
            _some(found.lacking),
            __version__,
        )
    if found.unknown:
        logger.warning(
            "the CRD is newer than this operator, %s, which leaves jobs with %s as they are: "
            "upgrade the operator",
            __version__,
            _some(found.unknown),
        )
    return found


def _some(names: Collection[str]) -> str:
    shown = ", ".join(sorted(names)[:_NAMED])
    return f"{shown} and {len(names) - _NAMED} more" if len(names) > _NAMED else shown
