"""Send code to the running pods of a job, and store it for later ones."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ddp_operator.api.code import PARTS_VOLUME, Code
from ddp_operator.api.constants import ANNOTATION_CODE, LABEL_JOB_NAME
from ddp_operator.job.pods.state import PodState
from ddp_operator.kube import CONFIG_MAPS
from ddp_operator.kube.errors import AnswerTooLargeError
from ddp_operator.ports import ClusterError, ConflictError, Key, Manifest
from ddp_protocol.code_archive import ROOT, SENT

from ddp_client.remote.channels import RECEIVE, each_of, run_in_pod
from ddp_client.remote.cluster import Cluster, listed
from ddp_client.remote.submission import create_config_map, owned_by
from ddp_client.views.refused import RefusedError

_SECONDS: Final = 120.0
_ATTEMPTS: Final = 20
"""Of a change that no other one may precede; a job's status changes once a second at most."""
_KEPT: Final = 3
"""Archives that a pod keeps: the operator may not have started the one before yet."""
_NO_LAUNCHER: Final = 4
_LIMIT: Final = 4096
_PROGRAM: Final = f"""
{RECEIVE}
import os
folder, name, left = sys.argv[1], sys.argv[2], int(sys.argv[3])
if not os.path.isdir(folder):
    sys.exit({_NO_LAUNCHER})
path = os.path.join(folder, name)
with open(path + ".part", "wb") as file:
    receive(file, left)
os.replace(path + ".part", path)
paths = [os.path.join(folder, name) for name in os.listdir(folder)]
for old in sorted(paths, key=os.path.getmtime)[:-{_KEPT}]:
    os.remove(old)
"""
"""Uses only the standard library, because the image may have any release of Python."""


class NotSentError(RefusedError):
    """A pod or volume did not receive the code; says which, why, and what to do."""


async def send_code(
    cluster: Cluster, pods: Sequence[PodState], code_id: str, packed: bytes
) -> None:
    """Put an archive into all pods, where their launchers find it. They do not use it yet.

    Raises:
        NotSentError: a pod did not receive it.
    """
    await each_of(pods, lambda pod: _send_to(cluster, pod, code_id, packed))


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


async def unused_code(cluster: Cluster, job: Manifest) -> list[str]:
    """Return the ConfigMaps with code that neither a job nor its pods' volumes name. Without the
    right to list them, none is known.

    Some of them another command may just have created. It reads the job before that, and
    `request_code` refuses its code if the job's has changed since. So they can be deleted as soon
    as the annotation names other code, and no sooner.
    """
    key = Key.of(job)
    notes = (job.get("status") or {}).get("bookkeeping") or {}
    texts = (str(notes.get("code") or ""), _requested(job))
    codes = filter(None, map(Code.parse, texts))
    needed = {name for code in codes for name in code.config_maps(key.name)}
    path = CONFIG_MAPS.path(namespace=key.namespace)
    selector = {"labelSelector": f"{LABEL_JOB_NAME}={key.name}"}
    try:
        stored = await listed(cluster.client, path, selector)
    except ClusterError:
        return []
    async for pod in cluster.stored_pods(key):
        # The kubelet reads them again and again, also after new code was sent to the pod.
        if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
            needed.update(_mounted(pod))
    names = (one["metadata"]["name"] for one in stored)
    return [n for n in names if n.startswith(f"{key.name}-code-") and n not in needed]


def _mounted(pod: Manifest) -> Iterator[str]:
    """Yield the names of the ConfigMaps from which a pod gets its code."""
    for volume in pod["spec"].get("volumes") or ():
        if volume["name"] == PARTS_VOLUME:
            for source in (volume.get("projected") or {}).get("sources") or ():
                yield (source.get("configMap") or {}).get("name") or ""


async def request_code(cluster: Cluster, job: Manifest, patch: Mapping[str, Any]) -> None:
    """Change the annotation that names a job's code, unless another command has changed it since
    `job` was read.

    Raises:
        RefusedError: it has.
        ClusterError: the API server refused the change.
    """
    key, uid = Key.of(job), job["metadata"]["uid"]
    before, code = _requested(job), patch["metadata"]["annotations"][ANNOTATION_CODE]
    for left in reversed(range(_ATTEMPTS)):
        version = {"resourceVersion": job["metadata"]["resourceVersion"]}
        try:
            await cluster.patch(key, uid, {**patch, "metadata": {**patch["metadata"], **version}})
        except ConflictError:
            # Usually only the status has changed.
            job = await cluster.job(key)
            if _requested(job) == code:
                return  # the answer to an earlier attempt was lost
            if job["metadata"]["uid"] != uid or _requested(job) != before:
                raise RefusedError(
                    f"another command has changed {key.name} meanwhile: see kubectl ddp status "
                    f"{key.name}, then try again"
                ) from None
            if not left:
                raise
        else:
            return


def _requested(job: Manifest) -> str:
    """Return the code that a job's annotation names, in its form; empty: none."""
    return (job["metadata"].get("annotations") or {}).get(ANNOTATION_CODE) or ""
