"""Creates the Secrets with the pods' tokens, one for each job and key."""

from collections.abc import Iterable

from ddp_operator.api.job import DDPJob
from ddp_operator.engine.tokens.access import Access
from ddp_operator.job.pods.access import lacks_token
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Cluster, ForbiddenError, InvalidError


class TokenSecrets:
    """Creates a job's Secret before its first pod, and again if it is missing.

    The operator may create Secrets but not read them. So it trusts an existing Secret: its name
    determines its content.
    """

    def __init__(self, cluster: Cluster[PodState], access: Access) -> None:
        self._cluster = cluster
        self._access = access

    async def create(self, job: DDPJob, key: str, pods: Iterable[PodState]) -> None:
        """Create the Secret that a job's pods with this key need, unless it exists.

        Raises:
            ClusterError: the API server refuses it, or does not answer.
        """
        if any(pod.owner_uid == job.uid and pod.token_key == key for pod in pods):
            return  # it was created before them
        try:
            await self._create(job, key)
        except ForbiddenError:
            # A full quota refuses even the creation of an existing Secret. If this job has had
            # pods, the Secret probably exists. Otherwise the pods wait, and `restore` reports why.
            if not job.status.bookkeeping.accepted_spec_hash:
                raise

    async def restore(self, job: DDPJob, pods: Iterable[PodState]) -> None:
        """Create a job's Secrets again if its pods wait for them."""
        waiting = (pod for pod in pods if pod.owner_uid == job.uid and lacks_token(pod))
        for key in sorted({pod.token_key for pod in waiting} & self._access.keys.keys()):
            await self._create(job, key)

    async def _create(self, job: DDPJob, key: str) -> None:
        try:
            await self._cluster.create_secret(self._access.secret_manifest(job, key))
        except (ForbiddenError, InvalidError) as error:
            raise error.because("this Secret provides DDP_TOKEN to pods") from None
