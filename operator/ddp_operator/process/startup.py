"""Start-up checks: the API server serves and allows everything that the operator needs.

A check must not end a process that is only too early: the API server may be away, or its CRD not
updated yet, and Kubernetes restarts a failing container after pauses of up to five minutes.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from socket import gethostname
from typing import Final, TypeVar

from ddp_operator.api import kubernetes
from ddp_operator.api.constants import TOKEN_SECRETS, VERSION
from ddp_operator.engine.tokens.access import Access
from ddp_operator.job.pods.fabrics import DEFAULT_SIDE_CARS, SideCars
from ddp_operator.kube import (
    CONFIG_MAPS,
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
from ddp_operator.kube.repeated_log import RepeatedLog
from ddp_operator.ports import ForbiddenError, Key, NotFoundError, UnavailableError
from ddp_operator.process.handlers import JOBS

logger = logging.getLogger(__name__)

T = TypeVar("T")

_RETRY_SECONDS: Final = 2.0
_SETTLE_SECONDS: Final = 30.0
"""A server that has just started answers before it has loaded all CRDs and roles."""

_NEEDED: Final = (
    (JOBS, ("list", "watch", "delete"), ""),
    (JOBS, ("patch",), "status"),
    (PODS, ("list", "watch", "get", "create", "patch", "delete", "deletecollection"), ""),
    (SERVICES, ("get", "create"), ""),
    (NETWORK_POLICIES, ("get", "create", "update", "delete"), ""),
    (EVENTS, ("create",), ""),
)
"""All permissions for jobs; the manifests grant exactly these."""

_CONTAINER: Final = "operator"
"""Name of the operator's own container, in all manifests."""

SECRET_NAME: Final = TOKEN_SECRETS
"""Name of the Secret in the operator's own namespace from which the tokens of all jobs derive;
`manifests/install` grants `get` on no other."""

SIDE_CARS_NAME: Final = "ddp-operator-side-cars"
"""Name of the ConfigMap in the operator's own namespace that an administrator may write;
`manifests/install` grants `get` on no other."""

_NEEDED_TO_LEAD: Final = ("get", "update")
"""Verbs on its own Lease that leader election needs, besides creating it."""

_NODE_VERBS: Final = ("list", "watch")
"""Verbs needed to avoid bad nodes, in the whole cluster. Optional."""

APPLY_CRD: Final = "kubectl apply -f crds/ddpjobs.yaml"

NEEDED_TO_REVIEW: Final = (
    Permission("create", TOKEN_REVIEWS),
    Permission("create", SUBJECT_ACCESS_REVIEWS),
)
"""Permissions needed to identify clients of the metrics, and to check their access."""

_RIGHTS: Final = "manifests/install/rbac.yaml"
_RIGHTS_IN_ONE_NAMESPACE: Final = "manifests/components/one-namespace/rbac.yaml"
_RIGHTS_TO_REVIEW: Final = "manifests/components/metrics-auth/rbac.yaml"
"""Files that grant the permissions."""


class StartupError(Exception):
    """The operator cannot work here. The message says what is missing, in one line."""


async def when_reachable(look: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `look` once the API server answers, however long that takes.

    Raises:
        StartupError: raised by `look`. It is retried for a while after the server has returned.
    """
    now = asyncio.get_running_loop().time
    log, settled_at = RepeatedLog(logger), now()
    while True:
        try:
            return await look()
        except UnavailableError as error:
            log.add(logging.WARNING, f"waiting for the API server: {error.message}")
            settled_at = now() + _SETTLE_SECONDS
        except StartupError as error:
            if now() >= settled_at:
                raise
            log.add(logging.WARNING, f"waiting for the API server, which has just started: {error}")
        await asyncio.sleep(_RETRY_SECONDS)


async def check(
    client: ApiClient, namespace: str | None, *, secret: Key, lease: Key | None = None
) -> None:
    """Check what would otherwise show as a job that never starts.

    Raises:
        StartupError: the API server is too old, the CRD or a permission is missing, or the operator
        would serve its own namespace only.
    """
    if namespace is not None and namespace == client.credentials.pod_namespace:
        raise StartupError(
            f"--namespace {namespace}: the operator runs in this namespace, where authors of jobs "
            "could use its account and its Secrets; install it in another namespace"
        )
    await _require_release(client)
    if not await check_served(client, JOBS):
        raise StartupError(
            f"the API server does not serve {JOBS} {VERSION}: install the CRD first ({APPLY_CRD})"
        )
    rights = _RIGHTS_IN_ONE_NAMESPACE if namespace else _RIGHTS
    await _require(client, needed(namespace, secret=secret, lease=lease), rights)


async def _require_release(client: ApiClient) -> None:
    """Refuse an API server that drops fields or rules. Accept one that hides its version."""
    try:
        told = str((await client.request("GET", "/version")).get("gitVersion"))
    except ForbiddenError as error:
        logger.info("the version of the API server is unknown: %s", error.message)
        return
    release = kubernetes.release(told)
    if release and release < kubernetes.OLDEST:
        oldest = kubernetes.in_words(kubernetes.OLDEST)
        raise StartupError(
            f"Kubernetes {told} is too old: upgrade the cluster to Kubernetes {oldest} or later"
        )


def needed(namespace: str | None, *, secret: Key, lease: Key | None) -> list[Permission]:
    """Return the permissions that the operator requires, in one namespace or in all."""
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
    """Return the optional permission to keep tokens out of pods, in one namespace or in all."""
    return Permission("create", SECRETS, "", namespace)


async def check_reviews(client: ApiClient) -> None:
    """Check that metrics with access control can be served.

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
    """Read the keys from which the tokens of jobs derive. The very first replica creates it. Also
    check whether Secrets may be created in the served `namespace`, or in all.

    Raises:
        StartupError: a key in the Secret is unusable, or there is none.
    """
    try:
        found = await own_secret(client, secret)
    except ValueError as error:
        raise StartupError(str(error)) from None
    right = create_token_secrets(namespace)
    if missing := await check_access(client, [right]):
        logger.warning(
            "jobs' tokens are in plain text in their pods, because a permission is missing: %s",
            "; ".join(str(permission) for permission in missing),
        )
    return Access(
        keys=found,
        operator_namespace=client.credentials.pod_namespace,
        has_secrets=not missing,
    )


async def side_cars(client: ApiClient, namespace: str) -> SideCars:
    """Read the images that an administrator chose for the sidecars of GPU networks.

    Raises:
        StartupError: the ConfigMap is invalid.
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
    """Return this operator's own image. Empty if unknown: outside of a cluster, or if the operator
    may not read its own pod.
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
    """Return whether the operator may read nodes. Without that it still works, and logs what it
    cannot do.
    """
    missing = await check_access(client, [Permission(verb, NODES) for verb in _NODE_VERBS])
    if missing:
        logger.info(
            "jobs will not avoid bad nodes, because a permission is missing: %s",
            "; ".join(str(permission) for permission in missing),
        )
    return not missing
