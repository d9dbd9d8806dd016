"""The operator as a process: start-up checks, its parts in order, health, and the end."""

import asyncio
import gc
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ddp_operator.api.constants import RECURSION
from ddp_operator.api.node_signals import DEFAULT_RULES, Rules
from ddp_operator.endpoints import HealthEndpoint, ListenError, MetricsEndpoint
from ddp_operator.endpoints.metrics import PATH as METRICS_PATH
from ddp_operator.engine import open_files
from ddp_operator.engine.metrics import JOBS
from ddp_operator.engine.pod_settings import PodSettings
from ddp_operator.engine.trainers.reports import PROGRESS_SECONDS
from ddp_operator.kube import (
    AccessReviews,
    ApiClient,
    Credentials,
    CredentialsError,
    Leadership,
    LeaseLostError,
    load_credentials,
)
from ddp_operator.ports import ClusterError, Key
from ddp_operator.process import crd_fit, startup
from ddp_operator.process.replica import Replica, ReplicaError
from ddp_operator.process.startup import StartupError

logger = logging.getLogger(__name__)

_COLLECT_AFTER: Final = 10_000
"""New objects between two garbage collections. Python's default is 700, less than one pod has as
JSON. Nearly all objects are freed without a collection, when nothing refers to them."""


@dataclass(frozen=True)
class Options:
    """Options of `python -m ddp_operator run`."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    """Serve only this namespace; None: all."""
    health_port: int = 8080
    """Port of /healthz and /readyz; 0: none."""
    metrics_port: int = 8081
    """Port of /metrics; 0: none."""
    metrics_auth: bool = False
    """Serve metrics only to clients that the API server allows."""
    metrics_cert_dir: str | None = None
    """Folder with the certificate for /metrics; None: without TLS."""
    metrics_jobs: int = JOBS
    """Number of jobs with their own metrics; 0: none."""
    priority_boost: int = 0
    """Largest priority boost of a running job's Workload; 0: none."""
    progress_poll_seconds: float = PROGRESS_SECONDS
    """How often the trainers of running jobs are polled for progress."""
    leader_elect: bool = False
    """Act only while holding a Lease, so that other replicas can stand by."""
    lease_name: str = "ddp-operator"
    lease_namespace: str | None = None
    """Namespace of the Lease, and of the Secret that all replicas share. None: the namespace of the
    operator's pod, or of the kubeconfig's context."""
    launcher_image: str | None = None
    """Image with the launcher for jobs; None: the image of the operator's own pod."""
    isolate: bool = False
    """Isolate jobs that do not set `isolation`."""
    node_rules: Rules = DEFAULT_RULES
    """Signals that mean that a node is broken, or about to leave."""


def run(options: Options) -> int:
    """Run until SIGTERM or SIGINT; return the exit code.

    A replica that loses its lease ends with an error. Kubernetes restarts it, and nothing that it
    had begun can remain.
    """
    sys.setrecursionlimit(RECURSION)
    gc.freeze()  # modules and their models stay, so no collection needs to inspect them
    gc.set_threshold(_COLLECT_AFTER, 10, 10)
    try:
        asyncio.run(_serve(options))
    except (
        StartupError,
        CredentialsError,
        ClusterError,
        LeaseLostError,
        ListenError,
        ReplicaError,
    ) as error:
        logger.error("%s", error)
        return 1
    return 0


async def _serve(options: Options) -> None:
    credentials = _credentials(options)
    health = HealthEndpoint()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(health.serving(options.health_port))
        metrics = await stack.enter_async_context(_serving_metrics(options, credentials))
        own_namespace = options.lease_namespace or credentials.default_namespace
        secret = Key(own_namespace, startup.SECRET_NAME)
        lease: Leadership | None = None
        if options.leader_elect:
            key = Key(own_namespace, options.lease_name)
            lease = await stack.enter_async_context(Leadership(_credentials(options), key))

        async def look() -> tuple[PodSettings, bool]:
            async with ApiClient(credentials) as client:
                key = lease.key if lease else None
                await startup.check(client, options.namespace, secret=secret, lease=key)
                if options.metrics_auth:
                    await startup.check_reviews(client)
                access = await startup.access(client, secret, namespace=options.namespace)
                side_cars = await startup.side_cars(client, own_namespace)
                image = options.launcher_image or await startup.own_image(client)
                settings = PodSettings(
                    access=access,
                    side_cars=side_cars,
                    launcher_image=image,
                    isolate=options.isolate,
                )
                return settings, await startup.may_see_nodes(client)

        settings, may_see_nodes = await startup.when_reachable(look)
        open_files.raise_limit()  # logs, so after the checks: a failed start logs only its error
        ready = asyncio.Event()
        client = ApiClient(credentials, before_write=lease.check if lease else None)
        replica = Replica(
            await stack.enter_async_context(client),
            namespace=options.namespace,
            settings=settings,
            lease=lease,
            ready=ready,
            may_see_nodes=may_see_nodes,
            node_rules=options.node_rules,
            progress_seconds=options.progress_poll_seconds,
            metrics_jobs=options.metrics_jobs,
            priority_boost=options.priority_boost,
        )
        health.ready, metrics.text = ready.is_set, replica.metrics
        async with ApiClient(credentials) as reader:
            await crd_fit.when_crd_fits(reader, replica.note_crd)
        await replica.run()


def _credentials(options: Options) -> Credentials:
    return load_credentials(kubeconfig=options.kubeconfig, context=options.context)


@asynccontextmanager
async def _serving_metrics(
    options: Options, credentials: Credentials
) -> AsyncIterator[MetricsEndpoint]:
    # Not the client of the others: standby replicas also serve metrics, and foreign requests must
    # not delay the operator's own.
    async with ApiClient(credentials, max_attempts=1) as client:
        reviews = AccessReviews(client, METRICS_PATH) if options.metrics_auth else None
        metrics = MetricsEndpoint(reviews)
        folder = Path(options.metrics_cert_dir) if options.metrics_cert_dir else None
        async with metrics.serving(options.metrics_port, certificates=folder):
            yield metrics
