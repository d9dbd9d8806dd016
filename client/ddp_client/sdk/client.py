"""The asynchronous clients: for a cluster, and for this machine."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, Unpack

from ddp_operator.api.constants import KIND
from ddp_operator.api.values.text import clean
from ddp_operator.kube import load_credentials
from ddp_operator.ports import Key, Manifest

from ddp_client.sdk import manifests
from ddp_client.sdk.backends.backend import Backend
from ddp_client.sdk.backends.kubernetes import KubernetesBackend
from ddp_client.sdk.errors import ClientError, ManifestError
from ddp_client.sdk.job import AsyncJob
from ddp_client.sdk.manifests import Options
from ddp_client.submit import admitted
from ddp_client.submit.validation import object_name
from ddp_client.views.job.snapshot import JobSnapshot


class AsyncClient:
    """Runs and inspects jobs on a cluster; an asynchronous context manager.

    Credentials come from $KUBECONFIG, ~/.kube/config, or the pod's service account.
    """

    _default_image: ClassVar[str | None] = None
    _is_local: ClassVar[bool] = False

    def __init__(
        self,
        *,
        namespace: str | None = None,
        context: str | None = None,
        kubeconfig: str | Path | None = None,
    ) -> None:
        given = None if kubeconfig is None else str(kubeconfig)
        credentials = load_credentials(kubeconfig=given, context=context)
        namespace = namespace or credentials.default_namespace
        self._backend: Backend = KubernetesBackend(credentials, object_name(namespace, "namespace"))

    async def __aenter__(self) -> Self:
        await self._backend.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._backend.__aexit__(None, None, None)

    async def run(
        self,
        function: Callable[..., object] | None = None,
        *,
        command: Sequence[str] | None = None,
        arguments: Mapping[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> AsyncJob:
        """Submit a job that runs a function or a command on each rank.

        The function's source is sent, and its `arguments` as JSON; it must import what it needs
        itself. `options` are those of `manifests.Options`: image, replicas, gpus and so on. In a
        namespace that enforces Pod Security `restricted`, the pods get the required security
        context.

        Raises:
            FunctionError: the function cannot run on its own; says what to change.
            JobRequestError: an option is invalid.
            NotSentError: the code could not be stored in its volume.
        """
        nodes = await self._backend.nodes() if options.get("gpus") else None
        job, config_maps, code = manifests.build_manifests(
            function,
            command,
            arguments,
            options,
            default_image=self._default_image,
            nodes=nodes or (),
            here=self._is_local,
        )
        security = await self._backend.pod_security(self._backend.namespace)
        job = admitted(job, security)
        if code and code.volume:
            await self._backend.store_code(self._backend.namespace, job, code)
        return await self._submit(job, config_maps)

    async def apply(self, manifest: Manifest) -> AsyncJob:
        """Submit a DDPJob manifest; the objects that it names must already exist.

        Raises:
            ManifestError, InvalidError: the manifest is invalid; names the field.
        """
        metadata = manifest.get("metadata")
        if manifest.get("kind") != KIND or not isinstance(metadata, Mapping):
            raise ManifestError(
                f"manifest: expected a {KIND} with metadata, not kind "
                f"{clean(manifest.get('kind'), 80)}; use kubectl apply -f for other kinds"
            )
        return await self._submit(manifest, [])

    async def _submit(self, job: Manifest, config_maps: Sequence[Manifest]) -> AsyncJob:
        metadata = {"namespace": self._backend.namespace, **job["metadata"]}
        return self._job(await self._backend.create({**job, "metadata": metadata}, config_maps))

    async def job(self, name: str) -> AsyncJob:
        """Return a job by its name.

        Raises:
            NoSuchJobError: the job does not exist.
        """
        return self._job(
            await self._backend.job(Key(self._backend.namespace, object_name(name, "name")))
        )

    async def jobs(self, *, all_namespaces: bool = False) -> list[AsyncJob]:
        """Return the jobs of the namespace, or of all namespaces."""
        where = None if all_namespaces else self._backend.namespace
        return [self._job(item) async for item in self._backend.jobs(where)]

    def _job(self, manifest: Manifest) -> AsyncJob:
        job = JobSnapshot.read(manifest)
        return AsyncJob(self._backend, job.key, job.uid)


class AsyncLocalClient(AsyncClient):
    """Runs jobs as processes of this machine, with the operator's own engine.

    All processes end with the context. Logs and volumes with checkpoints stay in `workdir`.
    Linux only.

    >>> async def main() -> None:
    ...     async with AsyncLocalClient() as client:
    ...         job = await client.run(command=["sh", "-c", "echo $RANK"], name="who", replicas=2)
    ...         await job.wait(timeout=60)
    ...         print(sorted([line.text async for line in job.logs()]))
    >>> asyncio.run(main())
    ['0', '1']
    """

    _default_image = "this-machine"  # a placeholder: a pod must name an image
    _is_local = True

    def __init__(self, *, workdir: str | Path | None = None) -> None:
        if sys.platform != "linux":
            raise ClientError(
                "local runs need Linux: they use its process control in place of containers"
            )
        from ddp_client.sdk.backends.local import LocalBackend  # noqa: PLC0415 - Linux alone has it

        self._local = LocalBackend(None if workdir is None else Path(workdir))
        self._backend = self._local

    @property
    def workdir(self) -> Path:
        """The folder with logs and volumes."""
        return self._local.workdir.path
