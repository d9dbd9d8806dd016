"""The operator's engine for jobs of one machine."""

import secrets

from ddp_operator.engine.engine import Engine
from ddp_operator.engine.pod_settings import PodSettings
from ddp_operator.engine.tokens.access import Access
from ddp_operator.engine.trainers.requests import HttpTrainers

from ddp_client.local.machine import LocalCluster


def local_engine(cluster: LocalCluster, *, progress_seconds: float) -> Engine:
    """Return an engine for a cluster whose pods do not outlive it."""
    return Engine(
        cluster,
        settings=PodSettings(
            access=Access(keys={"run": secrets.token_bytes(32)}),
            launcher_image="none",  # this machine's own launcher is run
        ),
        trainers=HttpTrainers(),
        progress_seconds=progress_seconds,
    )
