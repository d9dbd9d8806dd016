"""What the operator makes sure of before it works: that it is served and allowed all it needs.

Nothing of this may end a process that is only too early: the API server may be away for a while,
and a container that ends again and again is started ever more rarely.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from ddp_operator.api.constants import VERSION
from ddp_operator.job.pods.access import Access
from ddp_operator.kube import (
    EVENTS,
    LEASES,
    NETWORK_POLICIES,
    NODES,
    PODS,
    SECRETS,
    SERVICES,
    ApiClient,
    Permission,
    check_access,
    check_served,
    own_secret,
)
from ddp_operator.ports import Key, UnavailableError
from ddp_operator.replica import JOBS

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
"""All that the operator asks of the API server; `manifests/install` grants exactly this."""

SECRET_NAME: Final = "ddp-operator-tokens"
"""Of the Secret in the operator's own namespace from which the tokens of all jobs come;
`manifests/install` grants `get` on no other."""

_NEEDED_TO_LEAD: Final = ("get", "update")
"""What leader election needs on top, besides creating it: verbs on its own Lease."""


_NODE_VERBS: Final = ("list", "watch")
"""What avoiding bad nodes needs, in the whole cluster; the operator works without."""


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
        StartupError: the CRD or a permission is missing.
    """
    if not await check_served(client, JOBS):
        raise StartupError(
            f"the API server does not serve {JOBS} {VERSION}: install the CRD first "
            "(kubectl apply -f crds/ddpjobs.yaml)"
        )
    needed = [
        Permission(verb, resource, subresource, namespace)
        for resource, verbs, subresource in _NEEDED
        for verb in verbs
    ]
    needed.append(Permission("create", SECRETS, "", secret.namespace))
    needed.append(Permission("get", SECRETS, "", secret.namespace, secret.name))
    if lease is not None:
        needed.append(Permission("create", LEASES, "", lease.namespace))
        needed += [
            Permission(verb, LEASES, "", lease.namespace, lease.name) for verb in _NEEDED_TO_LEAD
        ]
    missing = await check_access(client, needed)
    if missing:
        raise StartupError(
            "missing permissions (see manifests/install/rbac.yaml): "
            + "; ".join(str(permission) for permission in missing)
        )


async def access(client: ApiClient, secret: Key) -> Access:
    """Read what the tokens of jobs come from, which the first replica ever makes up.

    Raises:
        StartupError: the Secret holds something else.
    """
    try:
        found = await own_secret(client, secret)
    except ValueError as error:
        raise StartupError(str(error)) from None
    return Access(secret=found, operator_namespace=client.credentials.pod_namespace)


async def may_see_nodes(client: ApiClient) -> bool:
    """Whether it may; the operator works without, and says what it will not do then."""
    missing = await check_access(client, [Permission(verb, NODES) for verb in _NODE_VERBS])
    if missing:
        logger.info(
            "jobs will not avoid bad nodes, for want of a permission: %s",
            "; ".join(str(permission) for permission in missing),
        )
    return not missing
