"""The pod that writes the code of a job to a volume: its manifest, its state and its program."""

from typing import Any, Final

from ddp_operator.api.constants import GKE_GCSFUSE_ANNOTATION
from ddp_operator.api.values.text import clean
from ddp_operator.job.pods.containers import decisive_state, waiting_reason
from ddp_operator.ports import Manifest
from ddp_protocol.code_archive import GZIP

from ddp_client.remote.channels import RECEIVE
from ddp_client.submit.code import CONTAINER, STORE_PATH, STORE_VOLUME
from ddp_client.submit.mounts import Mount

NAME: Final = "upload"
"""The pod's container."""
LABELS: Final = {"app.kubernetes.io/name": "ddp-code-upload"}
"""By which pods that a killed client left behind are found."""
MISSING: Final = 3
"""The program's exit code if the volume does not have the archive."""
_OF_THE_JOB: Final = ("securityContext", "serviceAccountName", "imagePullSecrets", "tolerations")

PROGRAM: Final = f"""
{RECEIVE}
import contextlib, hashlib, os, tempfile, time, zlib
path, digest, left = sys.argv[1], sys.argv[2], int(sys.argv[3])
folder = os.path.dirname(path)

def is_whole(path):
    unpacker, total = zlib.decompressobj({GZIP}), hashlib.sha256()
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(65536), b""):
            total.update(unpacker.decompress(piece))
    return unpacker.eof and total.hexdigest() == digest

if not left:
    try:
        sys.exit(0 if is_whole(path) else {MISSING})
    except (FileNotFoundError, zlib.error):
        sys.exit({MISSING})
os.makedirs(folder, exist_ok=True)
with contextlib.suppress(OSError):
    os.chmod(folder, 0o1777)
for name in os.listdir(folder):
    old = os.path.join(folder, name)
    with contextlib.suppress(OSError):
        if name.endswith(".part") and os.path.getmtime(old) < time.time() - 86400:
            os.remove(old)
number, part = tempfile.mkstemp(".part", "", folder)
try:
    with os.fdopen(number, "wb") as file:
        receive(file, left)
        file.flush()
        os.fsync(file.fileno())
    if not is_whole(part):
        sys.exit("the volume returns other bytes than it got")
    with contextlib.suppress(OSError):
        os.chmod(part, 0o644)
    os.replace(part, path)
except BaseException:
    os.remove(part)
    raise
"""
"""Reads an archive from its input; without any, it only looks whether the volume has it. Uses only
the standard library, because the image may have any release of Python.

All users of the volume may write to the folder, as to /tmp, since jobs run as different users. So
each pod compares the digest before it unpacks. Parts of a day ago are of clients that were killed.
"""


def upload_pod(
    job: Manifest, name: str, volume: Mount, *, node: str, lifetime_seconds: int
) -> Manifest:
    """Return the pod. It runs the job's image, as the same user and account.

    `node`: where it runs, whatever the node's taints are; empty: the scheduler decides.
    """
    template = job["spec"]["template"]
    spec = template["spec"]
    [unpacks] = [one for one in spec["initContainers"] if one["name"] == CONTAINER]
    wait = f"import time; time.sleep({lifetime_seconds})"
    container: dict[str, Any] = {
        "name": NAME,
        "image": unpacks["image"],
        "command": [unpacks["command"][0], "-I", "-c", wait],
        "resources": {
            "requests": {"cpu": "10m", "memory": "64Mi"},
            "limits": {"cpu": "1", "memory": "512Mi"},
        },
        "volumeMounts": [{"name": STORE_VOLUME, "mountPath": STORE_PATH}],
    }
    if "securityContext" in unpacks:
        container["securityContext"] = unpacks["securityContext"]
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    bucket = {k: v for k, v in annotations.items() if k == GKE_GCSFUSE_ANNOTATION}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": dict(LABELS), "annotations": bucket},
        "spec": {
            **{field: spec[field] for field in _OF_THE_JOB if field in spec},
            **({"nodeName": node} if node else {}),
            "containers": [container],
            "volumes": [{"name": STORE_VOLUME, **volume.source}],
            "restartPolicy": "Never",
            # It ends by itself if its client was killed.
            "activeDeadlineSeconds": lifetime_seconds,
            "terminationGracePeriodSeconds": 1,
        },
    }


def most_pods(job: Manifest) -> int:
    """Return the most pods that the job may have."""
    spec = job["spec"]
    most = max(spec["replicas"], (spec.get("elastic") or {}).get("maxReplicas") or 0)
    return int(most + (spec.get("spares") or 0))


def is_running(pod: Manifest) -> bool:
    """Return whether the pod can receive the code."""
    _, state = decisive_state(NAME, pod.get("status") or {})
    return "running" in state


def why_ended(pod: Manifest) -> str:
    """Return why the pod has ended; empty: it has not."""
    status = pod.get("status") or {}
    if status.get("phase") not in ("Failed", "Succeeded"):
        return ""
    ended = decisive_state(NAME, status)[1].get("terminated") or {}
    words = (holder.get(field) for holder in (status, ended) for field in ("reason", "message"))
    return clean(": ".join(filter(None, words)) or "its program ended", 400)


def obstacle(pod: Manifest) -> str:
    """Return what keeps the pod from starting, as the cluster says it; empty: nothing special."""
    status = pod.get("status") or {}
    _, state = decisive_state(NAME, status)
    conditions = {one["type"]: one for one in status.get("conditions") or ()}
    words = waiting_reason(state.get("waiting"), conditions)
    return clean(": ".join(filter(None, words)), 400)
