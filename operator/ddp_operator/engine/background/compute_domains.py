"""Deletes the ComputeDomains of deleted jobs, each after the last pod that may use it.

A domain must not have the job as its owner: Kubernetes would delete it together with the job's
pods, and NVIDIA's driver cuts the NVLink connections of all pods as soon as a domain's deletion is
requested (`job.pods.prerequisites`). So without this task, and while no operator runs, a domain
stays. It then costs nothing: its daemons run only on nodes with pods that claim its channels.
"""

import asyncio
import logging
from typing import Final

from ddp_operator.api.constants import LABEL_JOB_NAME, LABEL_JOB_UID
from ddp_operator.engine.delegation import uid_of_job
from ddp_operator.engine.job_cache import JobCache
from ddp_operator.job.pods.prerequisites import COMPUTE_DOMAIN
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import (
    Cluster,
    ClusterError,
    ForbiddenError,
    Key,
    Manifest,
    NotServedError,
)

logger = logging.getLogger(__name__)

_BUSY_SECONDS: Final = 10.0
"""Pause while there are domains of jobs."""
_QUIET_SECONDS: Final = 60.0
"""Pause while there are none."""
_ABSENT_SECONDS: Final = 600.0
"""Pause where domains are not served, or the operator may not list them."""


class ComputeDomains:
    """Deletes domains of jobs that are gone; `run` keeps looking for them."""

    def __init__(self, cluster: Cluster[PodState], jobs: JobCache) -> None:
        self._cluster = cluster
        self._jobs = jobs

    async def run(self) -> None:
        """Delete domains until cancelled."""
        while True:
            seconds = await self.delete()
            await asyncio.sleep(seconds)

    async def delete(self) -> float:
        """Delete the domains that no pod can use any more. Return the seconds until the next
        round.
        """
        try:
            domains = await self._cluster.find(COMPUTE_DOMAIN, labels={LABEL_JOB_UID: ""})
        except (NotServedError, ForbiddenError) as error:
            logger.debug("no ComputeDomain is deleted: %s", error.message)
            return _ABSENT_SECONDS
        except ClusterError as error:
            logger.warning("cannot list ComputeDomains: %s", error.message)
            return _BUSY_SECONDS
        for domain in domains:
            await self._delete(domain)
        return _BUSY_SECONDS if domains else _QUIET_SECONDS

    async def _delete(self, domain: Manifest) -> None:
        metadata = domain["metadata"]
        labels = metadata["labels"]
        key = Key(metadata["namespace"], labels.get(LABEL_JOB_NAME, metadata["name"]))
        entry = self._jobs.get(key)
        if metadata.get("deletionTimestamp") or (entry and entry.uid == labels[LABEL_JOB_UID]):
            return
        try:
            if await self._is_unused(key, labels[LABEL_JOB_UID]):
                await self._cluster.delete(domain)
                logger.info("%s: deleted the ComputeDomain of the job, which is gone", key)
        except ClusterError as error:
            logger.warning("%s: cannot delete the ComputeDomain: %s", key, error.message)

    async def _is_unused(self, key: Key, uid: str) -> bool:
        """Return whether the job and all its pods are gone. The API server is asked, because a
        watch may be late. The job comes first: after it, only the operator's own request that is
        still on its way can create a pod, which Kubernetes deletes at once.
        """
        if await uid_of_job(self._cluster, key) == uid:
            return False
        pods = {"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": key.namespace}}
        return not await self._cluster.find(pods, labels={LABEL_JOB_UID: uid})
