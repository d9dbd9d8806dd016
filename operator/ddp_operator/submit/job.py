"""Build a job's manifest from a request."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self

from ddp_operator.api.command import Started, started
from ddp_operator.api.constants import API_VERSION, GKE_GCSFUSE_ANNOTATION, KIND
from ddp_operator.api.job import DDPJob, InvalidJobError
from ddp_operator.job.pods import ranks
from ddp_operator.job.pods.pod_security import (
    RESTRICTED_CONTAINER,
    RESTRICTED_POD,
    PodSecurity,
)
from ddp_operator.ports import Manifest
from ddp_operator.submit.gpus import GpuRequest
from ddp_operator.submit.mounts import Mount
from ddp_operator.submit.scripts import PATH, VOLUME, Scripts
from ddp_operator.submit.validation import JobRequestError, object_name

Launcher = Literal["auto", "bundled", "inject", "torchrun", "none"]
LAUNCHERS: Final[tuple[Launcher, ...]] = ("auto", "bundled", "inject", "torchrun", "none")
_MAX_USER: Final = 2**31 - 1
"""The largest user ID that Kubernetes accepts."""


@dataclass(frozen=True)
class CheckpointLocation:
    """Where checkpoints are stored."""

    field: str
    """Field of `spec.checkpoint`."""
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `pvc/NAME` or `gs://BUCKET`.

        Raises:
            JobRequestError: it has another form.
        """
        if text.startswith("gs://"):
            return cls("gcsBucket", object_name(text[5:].rstrip("/"), "bucket"))
        if text.startswith("pvc/"):
            return cls("persistentVolumeClaim", object_name(text[4:], "claim"))
        raise JobRequestError(f"checkpoint {text[:120]!r}: use pvc/NAME or gs://BUCKET")


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """A job in a few options; all other fields keep the schema's defaults."""

    name: str
    image: str
    command: Sequence[str] = ()
    """The command with local paths; empty: the image's own."""
    namespace: str | None = None
    replicas: int = 1
    gpus: GpuRequest | None = None
    spot: bool = False
    cpu: str | None = None
    memory: str | None = None
    queue: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    env_from: Sequence[str] = ()
    """`secret/NAME` and `configmap/NAME`: all their keys become variables."""
    mounts: Sequence[Mount] = ()
    checkpoint: CheckpointLocation | None = None
    max_restarts: int | None = None
    min_replicas: int | None = None
    """Training continues with this many pods while others are missing."""
    max_replicas: int | None = None
    """The job grows up to this many pods when nodes are available."""
    spares: int = 0
    """Pods without a rank that wait to replace a lost one."""
    user: int | None = None
    """User ID of the processes, which then run as `restricted` requires; None: the image's."""
    scripts: Scripts | None = None
    launcher: Launcher = "auto"
    """Program that starts a pod's processes: the launcher of the image (`bundled`) or one copied
    into it (`inject`), torchrun, or the command itself (`none`). `auto` selects torchrun if a pod
    has several processes and the command starts Python."""


def job_manifest(request: JobRequest) -> Manifest:
    """Return a job's manifest, without fields that keep their defaults.

    Raises:
        JobRequestError: the job would be invalid; the text names the field.
    """
    container: dict[str, Any] = {"name": "trainer", "image": request.image}
    if command := pod_command(request):
        container["command"] = command
    if request.env:
        container["env"] = [{"name": name, "value": value} for name, value in request.env.items()]
    if request.env_from:
        container["envFrom"] = [_env_from(text) for text in request.env_from]
    if requests := {k: v for k, v in (("cpu", request.cpu), ("memory", request.memory)) if v}:
        container["resources"] = {"requests": requests}
    pod: dict[str, Any] = {"containers": [container]}
    _run_as(request.user, pod)
    template: dict[str, Any] = {"spec": pod}
    _mount(request, template, container)
    spec: dict[str, Any] = {"replicas": request.replicas}
    if request.gpus:
        spec["accelerator"] = {"type": request.gpus.type, "count": request.gpus.count}
        if request.spot:
            spec["accelerator"]["provisioning"] = "spot"
    elif request.spot:
        raise JobRequestError(
            "spot: needs gpus; to use spot CPU nodes, select them in a manifest's template"
        )
    if request.queue:
        spec["scheduling"] = {"queueName": request.queue}
    if request.checkpoint:
        spec["checkpoint"] = {request.checkpoint.field: request.checkpoint.name}
    if request.launcher == "inject":
        spec["launcher"] = "inject"
    if request.max_restarts is not None:
        spec["restart"] = {"maxRestarts": request.max_restarts}
    spec |= _membership(request)
    metadata = {"name": object_name(request.name, "name")}
    if request.namespace:
        metadata["namespace"] = request.namespace
    found: Manifest = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": metadata,
        "spec": {**spec, "template": template},
    }
    parsed(found)
    return found


def admitted(made: Manifest, security: PodSecurity | None) -> Manifest:
    """Return a manifest changed so that a namespace with this Pod Security admits it.

    Raises:
        JobRequestError: such a namespace forbids a mount.
    """
    if security is None or security.level == "privileged":
        return made
    found: Manifest = deepcopy(made)
    pod = found["spec"]["template"]["spec"]
    for volume in pod.get("volumes") or ():
        if "hostPath" in volume:
            raise JobRequestError(
                f"mount {volume['hostPath']['path']}: the namespace enforces Pod Security "
                f"{security.level}, which forbids paths of nodes; use pvc/NAME or gs://BUCKET"
            )
    if security.level == "restricted":
        _restrict(pod)
    return found


def _run_as(user: int | None, pod: dict[str, Any]) -> None:
    if user is None:
        return
    if not 0 < user <= _MAX_USER:
        raise JobRequestError(f"user {user}: give a number from 1 to {_MAX_USER}; 0 is root")
    # Without fsGroup, volumes of claims belong to root and the user cannot write to them.
    pod["securityContext"] = {
        "runAsUser": user,
        "fsGroup": user,
        "fsGroupChangePolicy": "OnRootMismatch",  # do not walk a large volume at each start
    }
    _restrict(pod)


def _restrict(pod: dict[str, Any]) -> None:
    """Set the fields that Pod Security's level `restricted` requires."""
    pod["securityContext"] = {**RESTRICTED_POD, **(pod.get("securityContext") or {})}
    for container in pod["containers"]:
        container["securityContext"] = dict(RESTRICTED_CONTAINER)


def parsed(manifest: Manifest) -> DDPJob:
    """Return the job as the operator parses it.

    Raises:
        JobRequestError: the operator would refuse it.
    """
    known = {"namespace": "default", "uid": "", "creationTimestamp": "1970-01-01T00:00:00Z"}
    try:
        return DDPJob.parse({**manifest, "metadata": known | manifest["metadata"]})
    except InvalidJobError as error:
        raise JobRequestError(str(error)) from None


def size_limits(request: JobRequest) -> tuple[int, int]:
    """Return the smallest and the largest number of pods that the job trains with."""
    return request.min_replicas or request.replicas, request.max_replicas or request.replicas


def ranks_per_pod(request: JobRequest) -> int:
    """Return the processes of each pod: one per GPU."""
    return request.gpus.count if request.gpus else 1


def pod_command(request: JobRequest) -> list[str]:
    """Return the command that runs in each pod.

    Raises:
        JobRequestError: it would not start one process per GPU.
    """
    command = list(request.command)
    if request.scripts:
        first = next(iter(request.scripts.files))
        command = request.scripts.in_pods(command or ["python", first])
    found, launcher = started(command), request.launcher
    if launcher == "auto":
        launcher = _chosen(request, found)
    if launcher in ("none", "inject"):
        return command
    if launcher == "bundled":
        if found.launcher:
            raise JobRequestError(
                f"launcher bundled: {found.called} starts processes too; remove it from the "
                "command (python train.py)"
            )
        start = ["python", "-m", "ddp_trainer.launch"]
        return [*start, "--", *command] if command else start
    return command if found.by_torchrun else _under_torchrun(found)


def starts_once(request: JobRequest) -> bool:
    """Tell whether the command must start a pod's processes itself, which cannot be checked."""
    alone = request.launcher in ("auto", "none") and ranks_per_pod(request) > 1
    return alone and not started(pod_command(request)).launcher


def _chosen(request: JobRequest, found: Started) -> Launcher:
    """Choose the program that starts a pod's processes.

    Raises:
        JobRequestError: the command's own launcher does not read the number of processes.
    """
    several = ranks_per_pod(request) > 1
    if found.launcher and not found.by_torchrun and (several or size_limits(request)[1] > 1):
        raise JobRequestError(
            f"{found.called}: takes the number of processes and pods from its own flags, not from "
            "the job; write python train.py, which torchrun starts, or add --launcher none"
        )
    if several and found.words[:1] and found.words[0].endswith(".py"):
        raise JobRequestError(f"{found.words[0]}: write python before it, or add --launcher none")
    return "torchrun" if several and found.python is not None else "none"


def _membership(request: JobRequest) -> dict[str, Any]:
    """Return the spec's fields for elastic groups and spares.

    Raises:
        JobRequestError: without the launcher, processes cannot learn of changes.
    """
    sizes = {"minReplicas": request.min_replicas, "maxReplicas": request.max_replicas}
    elastic = {name: size for name, size in sizes.items() if size is not None}
    asked = {"elastic": elastic, "spares": request.spares}
    found = {name: value for name, value in asked.items() if value}
    # An image's own command, or one with launcher none, may be the launcher itself.
    if found and (
        request.launcher == "torchrun" or (request.launcher == "auto" and pod_command(request))
    ):
        what = "another size" if elastic else "spares"
        raise JobRequestError(
            f"{what}: needs ddp_trainer's launcher; set launcher to inject, or to bundled if the "
            "image has it"
        )
    return found


def _under_torchrun(found: Started) -> list[str]:
    """Return the command under torchrun: `python -u -m torch.distributed.run train.py`.

    torchrun reads the number of processes and the rendezvous from the pods' environment.
    """
    words, python, begin = found.words, found.python, found.begin
    if python is None or found.launcher:
        raise JobRequestError(
            "launcher torchrun: the command must start Python, such as python train.py"
        )
    if found.in_shell:
        raise JobRequestError(
            "the shell command starts Python once: replace python with torchrun there, or give "
            "python train.py without a shell; --launcher none keeps the command"
        )
    if begin >= len(words) or words[begin] in ("-c", "-"):
        raise JobRequestError("launcher torchrun: the command must run a script or a module (-m)")
    before, rest = words[:begin], words[begin:]
    if python == begin:  # uv run SCRIPT names no python
        before = (*(word for word in before if word not in ("-s", "--script")), "python")
    if rest[0].startswith("-m") and rest[0] != "-m":  # torchrun reads -mtrain as several flags
        rest = ("-m", rest[0][2:], *rest[1:])
    elif rest[0] == "--module":
        rest = ("-m", *rest[1:])
    return [*before, "-m", "torch.distributed.run", *rest]


def _env_from(text: str) -> dict[str, Any]:
    kind, _, name = text.partition("/")
    kinds = {"secret": "secretRef", "configmap": "configMapRef"}
    if kind not in kinds:
        raise JobRequestError(f"env-from {text[:120]!r}: use secret/NAME or configmap/NAME")
    return {kinds[kind]: {"name": object_name(name, "env-from")}}


def _mount(request: JobRequest, template: dict[str, Any], container: dict[str, Any]) -> None:
    volumes: list[dict[str, Any]] = []
    mounts: list[dict[str, Any]] = []
    for number, mount in enumerate(request.mounts):
        name = f"mount-{number}"
        volumes.append({"name": name, **mount.source})
        volume_mount = {"name": name, "mountPath": mount.path}
        mounts.append(volume_mount | ({"readOnly": True} if mount.read_only else {}))
    if request.scripts:
        volumes.append({"name": VOLUME, "configMap": {"name": request.scripts.name(request.name)}})
        mounts.append({"name": VOLUME, "mountPath": PATH, "readOnly": True})
    if volumes:
        container["volumeMounts"] = mounts
        template["spec"]["volumes"] = volumes
    if any(mount.bucket for mount in request.mounts):
        template["metadata"] = {"annotations": {GKE_GCSFUSE_ANNOTATION: "true"}}


def world_size(manifest: Manifest) -> int:
    """Return the number of ranks of a job."""
    return ranks.world_size(parsed(manifest).spec)
