"""Send code to the running pods of a job."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from ddp_operator.api.code import Code
from ddp_operator.api.constants import LABEL_JOB_NAME
from ddp_operator.job.pods.state import PodState
from ddp_operator.kube import CONFIG_MAPS
from ddp_operator.kube.errors import AnswerTooLargeError
from ddp_operator.ports import ClusterError, Key, Manifest
from ddp_protocol.code_archive import ROOT, SENT

from ddp_client.remote.channels import run_in_pod
from ddp_client.remote.cluster import Cluster, listed
from ddp_client.remote.submission import create_config_map, delete_config_maps, owned_by

_AT_ONCE: Final = 8
"""Pods that receive code at the same time: all of it goes through the API server."""
_SECONDS: Final = 120.0
_YOUNG: Final = timedelta(minutes=10)
"""Longer than a client needs between the ConfigMaps and the annotation that names them."""
_KEPT: Final = 3
"""Archives that a pod keeps: the operator may not have started the one before yet."""
_NO_LAUNCHER: Final = 4
_LIMIT: Final = 4096
_PROGRAM: Final = f"""
import os, sys
folder, name, left = sys.argv[1], sys.argv[2], int(sys.argv[3])
if not os.path.isdir(folder):
    sys.exit({_NO_LAUNCHER})
path = os.path.join(folder, name)
with open(path + ".part", "wb") as file:
    while left:
        piece = sys.stdin.buffer.read1(min(left, 65536))
        if not piece:
            sys.exit("the connection ended early")
        file.write(piece)
        left -= len(piece)
os.replace(path + ".part", path)
paths = [os.path.join(folder, name) for name in os.listdir(folder)]
for old in sorted(paths, key=os.path.getmtime)[:-{_KEPT}]:
    os.remove(old)
"""
"""Uses only the standard library, because the image may have any release of Python."""


class NotSentError(Exception):
    """A pod did not receive the code; the message says which pod, why, and what to do."""


async def send_code(
    cluster: Cluster, pods: Sequence[PodState], code_id: str, packed: bytes
) -> None:
    """Put an archive into all pods, where their launchers find it. They do not use it yet.

    Raises:
        NotSentError: a pod did not receive it.
    """
    places = asyncio.Semaphore(_AT_ONCE)

    async def send(pod: PodState) -> None:
        async with places:
            await _send_to(cluster, pod, code_id, packed)

    try:
        async with asyncio.TaskGroup() as group:
            for pod in pods:
                group.create_task(send(pod))
    except* NotSentError as errors:
        raise errors.exceptions[0] from None


async def _send_to(cluster: Cluster, pod: PodState, code_id: str, packed: bytes) -> None:
    words = [f"{ROOT}/{SENT}", code_id, str(len(packed))]
    name = pod.key.name
    try:
        ran = await run_in_pod(
            cluster.client,
            pod.key,
            pod.container,
            ["python3", "-I", "-c", _PROGRAM, *words],
            content=packed,
            limit_bytes=_LIMIT,
            timeout_seconds=_SECONDS,
        )
    except AnswerTooLargeError:
        raise NotSentError(f"pod {name}: python3 printed more than {_LIMIT} bytes") from None
    except ClusterError as error:
        raise NotSentError(f"pod {name}: {error.message}") from None
    if ran.exit_code == _NO_LAUNCHER:
        raise NotSentError(
            f"pod {name}: no launcher of this release runs in it, and only that replaces code; "
            "create the job with --workdir and --launcher inject, or use --replace"
        )
    if ran.exit_code:
        said = ran.stderr[-512:].decode(errors="replace").strip()
        raise NotSentError(f"pod {name}: python3 ended with exit code {ran.exit_code}: {said}")


async def create_config_maps(
    cluster: Cluster, job: Manifest, config_maps: Sequence[Manifest]
) -> None:
    """Create the ConfigMaps of new code, from which later pods get it.

    Raises:
        ClusterError: they cannot be created.
    """
    for one in config_maps:
        made = {**one, "metadata": {**one["metadata"], **owned_by(job)["metadata"]}}
        await create_config_map(cluster, job["metadata"]["namespace"], made)


async def delete_earlier_code(cluster: Cluster, key: Key, present: Sequence[Code]) -> None:
    """Delete the ConfigMaps of a job's earlier code. Those of `present` code stay, because pods may
    start with it just now; so do young ones, because another client may be sending their code.
    """
    kept = {name for code in present for name in code.config_maps(key.name)}
    known = await _known(cluster, key)
    newest = max(known.values(), default=None)
    await delete_config_maps(
        cluster,
        key.namespace,
        [
            name
            for name, created in known.items()
            if name not in kept and newest and created < newest - _YOUNG
        ],
    )


async def _known(cluster: Cluster, key: Key) -> dict[str, datetime]:
    """Return when the ConfigMaps with code of a job were created, by name; none without the right
    to list.
    """
    path = CONFIG_MAPS.path(namespace=key.namespace)
    try:
        answer = await listed(
            cluster.client, path, {"labelSelector": f"{LABEL_JOB_NAME}={key.name}"}
        )
    except ClusterError:
        return {}
    return {
        one["metadata"]["name"]: datetime.fromisoformat(one["metadata"]["creationTimestamp"])
        for one in answer
        if one["metadata"]["name"].startswith(f"{key.name}-code-")
    }
