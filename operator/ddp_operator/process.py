"""The operator as a process: start-up checks, the parts in their order, health, and the end."""

import asyncio
import logging
from dataclasses import dataclass

from ddp_operator import startup
from ddp_operator.engine.reports import PROGRESS_SECONDS
from ddp_operator.health import Health
from ddp_operator.job.pods.access import Access
from ddp_operator.kube import (
    ApiClient,
    CredentialsError,
    LeaderLease,
    LeaseLostError,
    load_credentials,
    new_identity,
)
from ddp_operator.ports import ClusterError, Key
from ddp_operator.replica import Replica, ReplicaError
from ddp_operator.startup import StartupError

logger = logging.getLogger(__name__)


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
    """Of the Lease, and of the Secret that all replicas share. None: the namespace of the
    operator's pod, or of the kubeconfig's context.
    """


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
    health = Health()
    # A client of its own for the election: no renewal shall wait behind a job's hundred pods.
    async with health.serving(options.health_port), ApiClient(credentials) as election_client:
        own_namespace = options.lease_namespace or credentials.default_namespace
        secret = Key(own_namespace, startup.SECRET_NAME)
        lease: LeaderLease | None = None
        if options.leader_elect:
            key = Key(own_namespace, options.lease_name)
            lease = LeaderLease(election_client, key, identity=new_identity())

        async def look() -> tuple[Access, bool]:
            key = lease.key if lease else None
            await startup.check(election_client, options.namespace, secret=secret, lease=key)
            access = await startup.access(election_client, secret)
            return access, await startup.may_see_nodes(election_client)

        access, may_see_nodes = await startup.when_reachable(look)
        ready = asyncio.Event()
        async with ApiClient(credentials, before_write=lease.check if lease else None) as client:
            replica = Replica(
                client,
                namespace=options.namespace,
                access=access,
                lease=lease,
                ready=ready,
                may_see_nodes=may_see_nodes,
                progress_seconds=options.progress_poll_seconds,
            )
            health.ready, health.metrics = ready.is_set, replica.metrics
            await replica.run()
