"""Build a job's manifest from a request."""

from copy import deepcopy
from typing import Any, Final

from ddp_operator.api.constants import (
    ANNOTATION_CODE,
    API_VERSION,
    GKE_GCSFUSE_ANNOTATION,
    KIND,
)
from ddp_operator.api.job import DDPJob, InvalidJobError
from ddp_operator.api.pod_security import RESTRICTED_CONTAINER, RESTRICTED_POD
from ddp_operator.ports import Manifest

from ddp_client.documents import as_stored
from ddp_client.pod_security import PodSecurity
from ddp_client.submit.code import CodeFolder, pip_cache, set_variable
from ddp_client.submit.command import pod_command
from ddp_client.submit.request import JobRequest
from ddp_client.submit.scripts import PATH, VOLUME
from ddp_client.submit.validation import JobRequestError, object_name

_MAX_USER: Final = 2**31 - 1
"""The largest user ID that Kubernetes accepts."""


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
    template: dict[str, Any] = {"spec": pod}
    _mount(request, template, container)
    if request.code:
        _add_code(request, request.code, pod, container)
    _run_as(request.user, pod)
    spec: dict[str, Any] = {"replicas": request.replicas}
    _equip(request, spec, pod, container)
    if request.queue:
        spec["scheduling"] = {"queueName": request.queue}
    if request.checkpoint:
        spec["checkpoint"] = {request.checkpoint.field: request.checkpoint.name}
    if request.launcher == "inject":
        spec["launcher"] = "inject"
    if request.max_restarts is not None:
        spec["restart"] = {"maxRestarts": request.max_restarts}
    spec |= _membership(request)
    metadata: dict[str, Any] = {"name": object_name(request.name, "name")}
    if request.code and request.code.is_workdir:
        metadata["annotations"] = {ANNOTATION_CODE: str(request.code.code)}
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


def parsed(manifest: Manifest) -> DDPJob:
    """Return the job as the operator parses it.

    Raises:
        JobRequestError: the operator would refuse it.
    """
    try:
        return DDPJob.parse(as_stored(manifest))
    except InvalidJobError as error:
        raise JobRequestError(str(error)) from None


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
    for container in (*pod["containers"], *(pod.get("initContainers") or ())):
        container["securityContext"] = dict(RESTRICTED_CONTAINER)


def _equip(
    request: JobRequest, spec: dict[str, Any], pod: dict[str, Any], container: dict[str, Any]
) -> None:
    """Request the GPUs, and the nodes that have them."""
    gpus = request.gpus
    if gpus and gpus.is_gke:
        spec["accelerator"] = {"type": gpus.type, "count": gpus.count}
        if request.spot:
            spec["accelerator"]["provisioning"] = "spot"
        return
    if request.spot:
        raise JobRequestError(
            "spot: needs gpus of a GKE type; select other spot nodes in a manifest's template"
        )
    if gpus is None:
        return
    container.setdefault("resources", {})["limits"] = {gpus.resource: gpus.count}
    if gpus.type is not None:
        pod["nodeSelector"] = {gpus.label: gpus.type}
    # Nodes with GPUs often have this taint, so that other pods leave them free.
    pod["tolerations"] = [{"key": gpus.resource, "operator": "Exists", "effect": "NoSchedule"}]


def _membership(request: JobRequest) -> dict[str, Any]:
    """Return the spec's fields for elastic groups, spares and checkpoints in memory.

    Raises:
        JobRequestError: the launcher does the work, and the pods would not have it.
    """
    sizes = {"minReplicas": request.min_replicas, "maxReplicas": request.max_replicas}
    elastic = {name: size for name, size in sizes.items() if size is not None}
    memory = request.memory_checkpoint.field if request.memory_checkpoint else {}
    asked = {"elastic": elastic, "spares": request.spares, "memoryCheckpoint": memory}
    found = {name: value for name, value in asked.items() if value}
    # An image's own command, or one with launcher none, may be the launcher itself.
    if found and (
        request.launcher == "torchrun" or (request.launcher == "auto" and pod_command(request))
    ):
        what = "another size" if elastic else "spares" if request.spares else "memory-checkpoint"
        raise JobRequestError(
            f"{what}: needs ddp_trainer's launcher; set launcher to inject, or to bundled if the "
            "image has it"
        )
    return found


def _add_code(
    request: JobRequest, code: CodeFolder, pod: dict[str, Any], container: dict[str, Any]
) -> None:
    cache = pip_cache(request.mounts) if code.requirements else ""
    if cache and "PIP_CACHE_DIR" not in request.env:
        set_variable(container, "PIP_CACHE_DIR", cache)
    code.add_to(pod, container, job=request.name)


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
    stores = [request.code.volume] if request.code and request.code.volume else []
    if any(mount.bucket for mount in [*request.mounts, *stores]):
        template["metadata"] = {"annotations": {GKE_GCSFUSE_ANNOTATION: "true"}}
