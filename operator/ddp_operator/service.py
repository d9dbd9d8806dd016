"""The operator as a process: start-up checks, the parts in their order, health, and the end."""

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final

import kopf
from aiohttp import web

from ddp_operator import handlers
from ddp_operator.api.constants import GROUP, LABEL_JOB_NAME, PLURAL, VERSION
from ddp_operator.engine.engine import Engine
from ddp_operator.job.pods import PodState, job_of
from ddp_operator.kube import (
    EVENTS,
    PODS,
    SERVICES,
    ApiClient,
    CredentialsError,
    KubeCluster,
    Permission,
    Reflector,
    Resource,
    check_access,
    check_served,
    list_names,
    load_credentials,
)
from ddp_operator.ports import ClusterError

logger = logging.getLogger(__name__)

JOBS: Final = Resource(GROUP, VERSION, PLURAL)

_SYNC_SECONDS: Final = 120.0
"""Deadline of the first complete list of pods."""

_IDENTITY: Final[Any] = "ddp-operator"
"""What kopf calls this process; nothing depends on it without peering."""

_PRUNE_SECONDS: Final = 300.0
"""kopf tells of no deletion that happened while its watch was broken: names are compared this
often.
"""

_NEEDED: Final = (
    (JOBS, ("list", "watch", "delete"), ""),
    (JOBS, ("patch",), "status"),
    (PODS, ("list", "watch", "get", "create", "patch", "delete"), ""),
    (SERVICES, ("get", "create"), ""),
    (EVENTS, ("create",), ""),
)
"""All that the operator asks of the API server; `manifests/install` grants exactly this."""


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
    """Port of /healthz and /readyz; 0: none."""


def run(options: Options) -> int:
    """Run until SIGTERM or SIGINT; return the exit code."""
    try:
        asyncio.run(_serve(options))
    except (StartupError, CredentialsError, ClusterError) as error:
        logger.error("%s", error)
        return 1
    return 0


async def _serve(options: Options) -> None:
    credentials = load_credentials(kubeconfig=options.kubeconfig, context=options.context)
    async with ApiClient(credentials) as client:
        await _check(client, options.namespace)
        reflector = Reflector(
            client,
            PODS.path(namespace=options.namespace),
            label_selector=LABEL_JOB_NAME,
            project=PodState.project,
            group=job_of,
            on_change=lambda key: engine.look_at(key),  # noqa: PLW0108 - the engine comes later
        )
        cluster = KubeCluster(client, job_resource=JOBS, pods=reflector)
        engine = Engine(cluster)
        ready = asyncio.Event()
        health = await _serve_health(options.health_port, ready)
        parts = [
            asyncio.create_task(_never_ends(reflector.run(), "the pod reflector")),
            asyncio.create_task(_never_ends(_prune(client, engine, options), "pruning")),
        ]
        try:
            await reflector.wait_synced(timeout_seconds=_SYNC_SECONDS)
            engine.start()
            logger.info("serving %s", options.namespace or "all namespaces")
            kopf_task = asyncio.create_task(
                kopf.operator(
                    registry=handlers.registry_for(engine, credentials.connection),
                    settings=handlers.settings(),
                    standalone=True,
                    # kopf would ask for the user's name, which an arbitrary user ID does not have.
                    identity=_IDENTITY,
                    clusterwide=options.namespace is None,
                    namespaces=[options.namespace] if options.namespace else (),
                    ready_flag=ready,
                )
            )
            done, _ = await asyncio.wait([kopf_task, *parts], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # raises what ended it
        finally:
            ready.clear()
            await engine.stop()
            for task in parts:
                task.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
            await cluster.close()
            await health.cleanup()


async def _check(client: ApiClient, namespace: str | None) -> None:
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
    missing = await check_access(client, needed)
    if missing:
        raise StartupError(
            "missing permissions (see manifests/install/rbac.yaml): "
            + "; ".join(str(permission) for permission in missing)
        )


async def _never_ends(work: Coroutine[Any, Any, Any], name: str) -> None:
    await work
    raise StartupError(f"{name} has ended, which it never should")


async def _prune(client: ApiClient, engine: Engine, options: Options) -> None:
    """Forget jobs that no longer exist, however their deletion was missed."""
    while True:
        await asyncio.sleep(_PRUNE_SECONDS)
        known = engine.jobs.keys()
        try:
            existing = await list_names(client, JOBS.path(namespace=options.namespace))
        except ClusterError as error:
            logger.warning("cannot list the jobs to compare: %s", error)
            continue
        for key in known - existing:
            logger.info("%s is gone, and its deletion was not reported", key)
            engine.job_gone(key)


async def _serve_health(port: int, ready: asyncio.Event) -> web.AppRunner:
    """Answer the kubelet: alive while the event loop turns, ready once the watches run."""

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        if ready.is_set():
            return web.Response(text="ok\n")
        return web.Response(status=503, text="not watching yet\n")

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    if port:
        await web.TCPSite(runner, port=port).start()
    return runner
