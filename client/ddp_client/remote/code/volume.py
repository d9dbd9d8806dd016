"""Store the code of a job in a volume, through a pod that mounts it.

The bytes travel through the API server, as those of `kubectl cp` do, so this works on any cluster.
The pod exists only for that, because the job's own pods may start hours later.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from typing import Final

from ddp_operator.api.values.text import clean
from ddp_operator.kube import EVENTS, PODS, Resource
from ddp_operator.ports import (
    AlreadyExistsError,
    ClusterError,
    ForbiddenError,
    Key,
    Manifest,
    NotFoundError,
)
from ddp_protocol.code_archive import stored_name

from ddp_client.remote.channels import run_in_pod
from ddp_client.remote.cluster import Cluster, listed
from ddp_client.remote.code.pods import NotSentError
from ddp_client.remote.code.upload_pod import (
    MISSING,
    NAME,
    PROGRAM,
    is_running,
    most_pods,
    obstacle,
    upload_pod,
    why_ended,
)
from ddp_client.submit import CodeFolder
from ddp_client.submit.code import STORE_PATH
from ddp_client.submit.mounts import Mount

_CLAIMS: Final = Resource("", "v1", "persistentvolumeclaims")
_START_SECONDS: Final = 600.0
"""A node may have to be added, and the image be pulled."""
_LOOK_SECONDS: Final = 120.0
_SEND_SECONDS: Final = 900.0
_LIFETIME_SECONDS: Final = int(_START_SECONDS + _LOOK_SECONDS + _SEND_SECONDS)
_POLL_SECONDS: Final = 1.0
_LINE_SECONDS: Final = 15.0
_LIMIT: Final = 4096
_RIGHTS: Final = (
    "storing code in a volume takes the rights to get, create and delete pods, and to get and "
    "create pods/exec"
)


async def store_code(
    cluster: Cluster,
    namespace: str,
    job: Manifest,
    code: CodeFolder,
    *,
    node: str = "",
    tell: Callable[[str], None] = lambda _: None,
) -> None:
    """Put a job's archive into the job's volume for code, unless it is there or fits in ConfigMaps.

    `node`: of a pod that already mounts the volume; empty: none does. `tell` gets lines about what
    goes on. The pod is deleted at the end, also when this is cancelled.

    Raises:
        NotSentError: the code is not in the volume; says why and what to do.
    """
    volume = code.volume
    assert volume is not None, "the code has no volume"
    if not node:
        await _check_claim(cluster, namespace, most_pods(job), volume)
    if not code.is_stored:
        return
    digest = sha256(code.archive).hexdigest()
    name = f"ddp-code-{digest[:12]}-{secrets.token_hex(4)}"
    pod = upload_pod(job, name, volume, node=node, lifetime_seconds=_LIFETIME_SECONDS)
    upload = _Upload(cluster, Key(namespace, name), pod, digest, tell)
    size, place = f"{len(code.packed) / 2**20:.1f} MiB", clean(volume.place, 80)
    tell(f"-- {size} of code for {place}: starting pod {name}")
    try:
        await upload.start()
        if await upload.is_stored():
            tell(f"-- {place} already has this code")
            return
        async with _repeating(lambda: tell(f"-- still sending {size} to pod {name}")):
            await upload.send(code.packed)
        tell(f"-- the code is in {place}")
    except ForbiddenError as error:
        raise NotSentError(f"{error.message}: {_RIGHTS}") from None
    except ClusterError as error:
        raise NotSentError(f"pod {name}: {error.message}") from None
    finally:
        await upload.end()


async def _check_claim(cluster: Cluster, namespace: str, pods: int, volume: Mount) -> None:
    """Refuse a claim that so many pods cannot mount. It is trusted without the right to read it."""
    name = (volume.source.get("persistentVolumeClaim") or {}).get("claimName")
    if name is None:
        return
    try:
        claim = await cluster.client.request("GET", _CLAIMS.path(namespace=namespace, name=name))
    except NotFoundError:
        raise NotSentError(
            f"code-volume: there is no claim {name} in namespace {namespace}; create it, or name "
            "another one"
        ) from None
    except ForbiddenError:
        return
    if claim["metadata"].get("deletionTimestamp"):
        raise NotSentError(f"code-volume: claim {name} is being deleted; name another one")
    modes = claim["spec"].get("accessModes") or ()
    if "ReadWriteMany" in modes or pods == 1:
        return
    nodes = await cluster.nodes()
    if nodes is None or len(nodes) != 1:
        raise NotSentError(
            f"code-volume: claim {name} is {clean(', '.join(modes), 80)}, so one node alone can "
            f"use it, but the job may have {pods} pods; name a claim with ReadWriteMany, or a "
            "bucket"
        )


class _Upload:
    """A pod that receives one archive."""

    def __init__(
        self, cluster: Cluster, key: Key, pod: Manifest, digest: str, tell: Callable[[str], None]
    ) -> None:
        self._cluster = cluster
        self._client = cluster.client
        self._key = key
        self._pod = pod
        self._digest = digest
        self._tell = tell
        self._path = PODS.path(namespace=key.namespace, name=key.name)

    async def start(self) -> None:
        """Create the pod, and wait until it can receive the code.

        Raises:
            NotSentError: it has ended, or did not start in time.
        """
        with contextlib.suppress(AlreadyExistsError):  # the answer to the first attempt was lost
            await self._client.request(
                "POST", PODS.path(namespace=self._key.namespace), body=self._pod
            )
        name, why = self._key.name, ""

        def say() -> None:
            self._tell(f"-- still waiting for pod {name} to start{why and ': '}{why}")

        try:
            async with asyncio.timeout(_START_SECONDS), _repeating(say):
                while not is_running(stored := await self._client.request("GET", self._path)):
                    if ended := why_ended(stored):
                        raise NotSentError(f"pod {name} ended before it got the code: {ended}")
                    why = obstacle(stored)
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            why = why or await self._last_warning()
            seconds = f"{_START_SECONDS:g} s"
            raise NotSentError(f"pod {name} has not started in {seconds}: {why}") from None

    async def is_stored(self) -> bool:
        """Return whether the volume has the whole archive."""
        return await self._run(b"", _LOOK_SECONDS, (0, MISSING)) == 0

    async def send(self, packed: bytes) -> None:
        """Send the compressed archive."""
        await self._run(packed, _SEND_SECONDS, (0,))

    async def _run(self, content: bytes, seconds: float, expected: tuple[int, ...]) -> int:
        python = self._pod["spec"]["containers"][0]["command"][0]
        words = [f"{STORE_PATH}/{stored_name(self._digest)}", self._digest, str(len(content))]
        ran = await run_in_pod(
            self._client,
            self._key,
            NAME,
            [python, "-I", "-c", PROGRAM, *words],
            content=content,
            limit_bytes=_LIMIT,
            timeout_seconds=seconds,
        )
        if ran.exit_code not in expected:
            words = ran.stderr.decode(errors="replace").split("\n")
            why = clean(next(filter(str.strip, reversed(words)), ""), 400)
            raise NotSentError(f"pod {self._key.name} could not store the code: {why}")
        return ran.exit_code

    async def _last_warning(self) -> str:
        """Return the newest warning, such as that a volume cannot be mounted."""
        selector = {"fieldSelector": f"involvedObject.name={self._key.name},type=Warning"}
        path = EVENTS.path(namespace=self._key.namespace)
        try:
            events = await listed(self._client, path, selector)
        except ClusterError as error:
            return f"its events could not be read: {clean(error.message, 200)}"
        return clean(events[-1].get("message"), 400) if events else "it has no warnings"

    async def end(self) -> None:
        """Delete the pod."""
        try:
            await self._client.request("DELETE", self._path)
        except NotFoundError:
            pass
        except ClusterError as error:
            self._tell(
                f"-- pod {self._key.name} could not be deleted ({clean(error.message, 200)}): "
                f"delete it; it ends within {_LIFETIME_SECONDS // 60} min"
            )


@contextlib.asynccontextmanager
async def _repeating(act: Callable[[], None]) -> AsyncIterator[None]:
    """Call a function from time to time while the block runs."""

    async def repeat() -> None:
        while True:
            await asyncio.sleep(_LINE_SECONDS)
            act()

    task = asyncio.create_task(repeat())
    try:
        yield
    finally:
        task.cancel()
