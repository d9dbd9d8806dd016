"""The operator as a process: start-up checks, the parts in their order, health, and the end."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from ddp_operator.api.constants import VERSION
from ddp_operator.engine.metrics import CONTENT_TYPE
from ddp_operator.engine.reports import PROGRESS_SECONDS
from ddp_operator.kube import (
    EVENTS,
    LEASES,
    NODES,
    PODS,
    SERVICES,
    ApiClient,
    CredentialsError,
    LeaderLease,
    LeaseLostError,
    Permission,
    check_access,
    check_served,
    load_credentials,
    new_identity,
)
from ddp_operator.ports import ClusterError, Key
from ddp_operator.replica import JOBS, Replica, ReplicaError

logger = logging.getLogger(__name__)

_NEEDED: Final = (
    (JOBS, ("list", "watch", "delete"), ""),
    (JOBS, ("patch",), "status"),
    (PODS, ("list", "watch", "get", "create", "patch", "delete"), ""),
    (SERVICES, ("get", "create"), ""),
    (EVENTS, ("create",), ""),
)
"""All that the operator asks of the API server; `manifests/install` grants exactly this."""

_NEEDED_TO_LEAD: Final = ("get", "update")
"""What leader election needs on top, besides creating it: verbs on its own Lease."""


_NODE_VERBS: Final = ("list", "watch")
"""What avoiding bad nodes needs, in the whole cluster; the operator works without."""


class StartupError(Exception):
    """The operator cannot work here; the message says in one line what is missing."""


@dataclass(frozen=True)
class Options:
    """What `python -m ddp_operator run` was told."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    """Serve only this namespace; None: all."""
    health_port: int = 8080
    """Port of /healthz, /readyz and /metrics; 0: none."""
    progress_poll_seconds: float = PROGRESS_SECONDS
    """How often the trainers of running jobs are asked for their progress."""
    leader_elect: bool = False
    """Act only while holding a Lease, so that other replicas can stand by."""
    lease_name: str = "ddp-operator"
    lease_namespace: str | None = None
    """None: the namespace of the operator's pod, or of the kubeconfig's context."""


def run(options: Options) -> int:
    """Run until SIGTERM or SIGINT; return the exit code.

    A replica that loses its lease ends, with an error: Kubernetes starts it anew, and nothing that
    it had begun can linger.
    """
    try:
        asyncio.run(_serve(options))
    except (StartupError, CredentialsError, ClusterError, LeaseLostError, ReplicaError) as error:
        logger.error("%s", error)
        return 1
    return 0


async def _serve(options: Options) -> None:
    credentials = load_credentials(kubeconfig=options.kubeconfig, context=options.context)
    # A client of its own for the election: no renewal shall wait behind a job's hundred pods.
    async with ApiClient(credentials) as election_client:
        lease: LeaderLease | None = None
        if options.leader_elect:
            key = Key(options.lease_namespace or credentials.default_namespace, options.lease_name)
            lease = LeaderLease(election_client, key, identity=new_identity())
        await _check(
            election_client,
            options.namespace,
            lease=lease.key if lease else None,
        )
        may_see_nodes = await _may_see_nodes(election_client)
        ready = asyncio.Event()
        async with ApiClient(credentials, before_write=lease.check if lease else None) as client:
            replica = Replica(
                client,
                namespace=options.namespace,
                lease=lease,
                ready=ready,
                may_see_nodes=may_see_nodes,
                progress_seconds=options.progress_poll_seconds,
            )
            health = await _serve_health(options.health_port, ready, replica.metrics)
            try:
                await replica.run()
            finally:
                await health.cleanup()


async def _check(client: ApiClient, namespace: str | None, *, lease: Key | None = None) -> None:
    """Find out at once what would otherwise show as a job that never starts."""
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


async def _may_see_nodes(client: ApiClient) -> bool:
    missing = await check_access(client, [Permission(verb, NODES) for verb in _NODE_VERBS])
    if missing:
        logger.info(
            "jobs will not avoid bad nodes, for want of a permission: %s",
            "; ".join(str(permission) for permission in missing),
        )
    return not missing


async def _serve_health(
    port: int, ready: asyncio.Event, metrics_text: Callable[[], str]
) -> web.AppRunner:
    """Answer the kubelet: alive while the event loop turns, ready once the watches run; and
    Prometheus.
    """

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        if ready.is_set():
            return web.Response(text="ok\n")
        return web.Response(status=503, text="not watching yet\n")

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=metrics_text().encode(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    app.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/metrics", metrics),
        ]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    if port:
        await web.TCPSite(runner, port=port).start()
    return runner
