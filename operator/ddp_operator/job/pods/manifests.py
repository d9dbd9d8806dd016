"""Build a job's Service and pods: names, distributed environment, GPU placement, volumes."""

from collections.abc import Mapping
from typing import Any

from ddp_operator.api import constants
from ddp_operator.api.devices import accelerators
from ddp_operator.api.job import DDPJob
from ddp_operator.api.rules import trainer_container
from ddp_operator.api.spec import Checkpoint
from ddp_operator.api.spec.accelerator import Accelerator, Reservation
from ddp_operator.api.spec.overrides import spec_of
from ddp_operator.job.membership.rank_order import HOLD_SECONDS, is_first_due
from ddp_operator.job.membership.world import (
    members,
    members_to_lead,
    node_ranks,
    scope_of,
    world_of,
)
from ddp_operator.job.pods import ranks
from ddp_operator.job.pods.access import SecretKey
from ddp_operator.job.pods.avoided_nodes import keep_off, prefer_others
from ddp_operator.job.pods.fabrics import DEFAULT_SIDE_CARS, SideCars, on_fabric
from ddp_operator.job.pods.injection import inject
from ddp_operator.job.pods.local_checkpoints import local_paths
from ddp_operator.job.pods.schedulers import scheduled
from ddp_operator.job.pods.state import START_TIMEOUT, UNSTARTABLE_REASONS, Identity

CHECKPOINT_VOLUME = "ddp-checkpoints"
SHARED_MEMORY_VOLUME = "ddp-shared-memory"
SHARED_MEMORY_PATH = "/dev/shm"

LEAVE_SECONDS = 5
"""How long a pod keeps training after a deletion is requested, so that the others can continue
without it. The message takes a tenth of that. A spot node leaves 15 s in all, which must include a
save."""

_OF_A_PLACE = frozenset(
    {"MASTER_ADDR", "WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE", "PET_NNODES",
     "PET_NODE_RANK", "PET_MASTER_ADDR"}
)  # fmt: skip
"""Variables that a spare does not get."""
_NEVER_BEGAN = UNSTARTABLE_REASONS | {START_TIMEOUT}


def environment(job: DDPJob, identity: Identity, *, token: str) -> dict[str, str]:
    """Return the trainer container's environment: PyTorch's `env://` variables, torchrun's PET_*,
    and the operator's own. An empty token is left out.
    """
    spec = job.spec
    pods, local_world_size = len(members(job)), ranks.local_world_size(spec, identity.index)
    master_addr = master_addr_of(job, identity.attempt)
    variables = {
        "MASTER_ADDR": master_addr,
        "MASTER_PORT": spec.master_port,
        "WORLD_SIZE": ranks.world_size(spec, pods),
        "NODE_RANK": identity.index,
        "GROUP_RANK": identity.index,
        "LOCAL_WORLD_SIZE": local_world_size,
        "GROUP_WORLD_SIZE": pods,
        "DDP_BACKEND": ranks.backend(spec),
        "DDP_JOB_NAME": job.name,
        "DDP_JOB_UID": job.uid,
        "DDP_ATTEMPT": identity.attempt,
        "DDP_CHECKPOINT_DIR": spec.checkpoint.path,
        constants.ENV_STATUS_PORT: spec.status_port,
        "PYTHONUNBUFFERED": 1,
        "PET_NNODES": pods,
        "PET_NPROC_PER_NODE": local_world_size,
        "PET_NODE_RANK": identity.index,
        "PET_MASTER_ADDR": master_addr,
        "PET_MASTER_PORT": spec.master_port,
    }
    if is_spare(job, identity):  # its launcher gets them later; a script without one fails
        variables = {name: value for name, value in variables.items() if name not in _OF_A_PLACE}
    elif local_world_size == 1:
        # With several processes the launcher sets these. Without one, a plain script fails on the
        # missing RANK, rather than hang in a group that never completes.
        variables |= {"RANK": ranks.first_rank(spec, identity.index), "LOCAL_RANK": 0}
    if sizes := ranks.pod_sizes(spec):
        variables[constants.ENV_POD_SIZES] = sizes
    if token:
        variables[constants.ENV_TOKEN] = token
    variables[constants.ENV_SCOPE] = scope_of(job) if spec.kueue_queue else spec.restart.scope
    variables[constants.ENV_GENERATION] = world_of(job).generation
    variables[constants.ENV_POD] = identity.pod_name(job.name)
    if is_held(job, identity):
        variables[constants.ENV_HELD] = 1
    elif is_first_due(job) and not is_spare(job, identity):
        variables[constants.ENV_HOLD_SECONDS] = HOLD_SECONDS
    if spec.elastic:
        variables |= {
            constants.ENV_BATCH: spec.elastic.batch,
            constants.ENV_BATCH_RANKS: ranks.world_size(spec),
        }
    if spec.elastic or spec.spares:
        variables[constants.ENV_LEAVE_SECONDS] = LEAVE_SECONDS
    if spec.replicas > 1 or spec.elastic:
        paths = local_paths(spec_of(spec, identity.index))
        variables |= {constants.ENV_LOCAL_PATHS: ":".join(paths)} if paths else {}
    if identity.index == 0 and not is_spare(job, identity):
        variables |= _trackers(job)
        if group := members_to_lead(job):
            variables[constants.ENV_MEMBERS] = group
    return {name: str(value) for name, value in variables.items()}


def master_addr_of(job: DDPJob, attempt: int) -> str:
    """Return the DNS name of rank 0's pod, which resolves from any of the job's pods."""
    return f"{Identity(index=members(job)[0], attempt=attempt).host_name(job.name)}.{job.name}"


def is_spare(job: DDPJob, identity: Identity) -> bool:
    """Return whether a pod is outside the group."""
    return identity.slot not in node_ranks(job)


def is_held(job: DDPJob, identity: Identity) -> bool:
    """Return whether a pod's processes wait for an assignment before they start: the other pods,
    and the rank 0 that it would join, may still be of an earlier generation.
    """
    if identity.replacement == 0 or world_of(job).generation == 0:
        return False
    # Without a launcher that answered, nothing could release it.
    return scope_of(job) == "InPlace" and bool(job.status.bookkeeping.launcher)


def _trackers(job: DDPJob) -> dict[str, str]:
    """Return variables that make all restarts one W&B run. Only rank 0's pod gets them, since
    several writers corrupt a run. MLflow assigns run ids itself.
    """
    return {"WANDB_RUN_ID": job.uid, "WANDB_RESUME": "allow", "WANDB_NAME": job.name}


def owner_reference(job: DDPJob) -> dict[str, Any]:
    """Return the reference that deletes an object with its job."""
    return {
        "apiVersion": constants.API_VERSION,
        "kind": constants.KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def own_metadata(job: DDPJob) -> dict[str, Any]:
    """Return the metadata of an object that a job has one of."""
    return {
        "name": job.name,
        "namespace": job.namespace,
        "labels": {constants.LABEL_JOB_NAME: job.name},
        "ownerReferences": [owner_reference(job)],
    }


def service(job: DDPJob) -> dict[str, Any]:
    """Return the headless Service that gives the job's pods their DNS names."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": own_metadata(job),
        "spec": {
            "clusterIP": "None",
            # Ranks must find each other before any of them is ready.
            "publishNotReadyAddresses": True,
            "selector": {constants.LABEL_JOB_NAME: job.name, constants.LABEL_SERVING: "true"},
            "ports": [{"name": "rendezvous", "port": job.spec.master_port}],
        },
    }


def pod(
    job: DDPJob,
    identity: Identity,
    *,
    token: str | SecretKey = "",
    side_cars: SideCars = DEFAULT_SIDE_CARS,
    launcher_image: str = "",
) -> dict[str, Any]:
    """Return one pod, built from the user's template.

    `token` and `launcher_image` may be empty if the pod is not created; only `launcher: inject`
    uses the latter. The pod shares unchanged parts with the template, so change neither in place.
    """
    own = spec_of(job.spec, identity.index)
    template = own.template
    metadata = template.get("metadata") or {}
    spec: dict[str, Any] = dict(template["spec"])
    labels = {
        **_users(metadata.get("labels")),
        constants.LABEL_JOB_NAME: job.name,
        constants.LABEL_INDEX: str(identity.slot),
        constants.LABEL_ATTEMPT: str(identity.attempt),
        constants.LABEL_REPLACEMENT: str(identity.replacement),
        constants.LABEL_SERVING: "true",
    }
    # A plain script reports its failure in its log.
    trainer: dict[str, Any] = {
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **trainer_container(template),
    }
    annotations = {
        **_users(metadata.get("annotations")),
        constants.ANNOTATION_SPEC_HASH: job.spec_hash,
        constants.ANNOTATION_SIGNS: "true",
        constants.ANNOTATION_TRAINER: trainer["name"],
    }
    if generation := world_of(job).generation:
        annotations[constants.ANNOTATION_GENERATION] = str(generation)
    spec["containers"] = [
        trainer if c.get("name") == trainer.get("name") else c for c in spec["containers"]
    ]
    spec.update(
        restartPolicy="Never",
        hostname=identity.host_name(job.name),
        subdomain=job.name,
    )
    if spec.get("hostNetwork") and spec.get("dnsPolicy", "ClusterFirst") == "ClusterFirst":
        # By default it would use its node's name server, which does not know the ranks.
        spec["dnsPolicy"] = "ClusterFirstWithHostNet"
    if is_spare(job, identity) and (lower := job.spec.spares_priority_class_name):
        for of_another_class in ("priority", "preemptionPolicy"):
            spec.pop(of_another_class, None)
        spec["priorityClassName"] = lower
    plain = "" if isinstance(token, SecretKey) else token
    variables: dict[str, str | SecretKey] = {**environment(job, identity, token=plain)}
    if isinstance(token, SecretKey):
        variables[constants.ENV_TOKEN] = token
        annotations[constants.ANNOTATION_TOKEN_SECRET] = token.secret
    _add_environment(trainer, variables)
    _add_checkpoint(spec, annotations, trainer, own.checkpoint)
    _add_shared_memory(spec, trainer)
    if own.launcher == "inject":
        inject(spec, trainer, image=launcher_image)
    if own.accelerator:
        _add_accelerator(spec, trainer, own.accelerator)
    if job.status.excluded_nodes:
        keep_off(spec, job.status.excluded_nodes)
    late = [failure.node for failure in job.status.failures if failure.reason in _NEVER_BEGAN]
    if others := sorted({node for node in late if node}):
        prefer_others(spec, others)
    made = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **metadata,
            "name": identity.pod_name(job.name),
            "namespace": job.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [owner_reference(job)],
        },
        "spec": spec,
    }
    fabric = own.accelerator.fabric if own.accelerator else None
    if fabric:
        made = on_fabric(fabric, made, trainer=trainer["name"], side_cars=side_cars)
    return scheduled(job, identity, made)


def _users(marks: Mapping[str, str] | None) -> dict[str, str]:
    """Return the template's labels or annotations without the operator's own prefix."""
    return {
        key: value
        for key, value in (marks or {}).items()
        if not key.startswith(constants.OWN_PREFIX)
    }


def _add_environment(trainer: dict[str, Any], ours: Mapping[str, str | SecretKey]) -> None:
    users = trainer.get("env") or []
    taken = {entry["name"] for entry in users}
    # Ours first, so that a user's variable may refer to them as $(NAME).
    added = [_variable(name, value) for name, value in ours.items() if name not in taken]
    trainer["env"] = added + users


def _variable(name: str, value: str | SecretKey) -> dict[str, Any]:
    if not isinstance(value, SecretKey):
        return {"name": name, "value": value}
    reference = {"name": value.secret, "key": value.key}
    return {"name": name, "valueFrom": {"secretKeyRef": reference}}


def _add_checkpoint(
    spec: dict[str, Any],
    annotations: dict[str, str],
    trainer: dict[str, Any],
    checkpoint: Checkpoint,
) -> None:
    source: dict[str, Any]
    if checkpoint.persistent_volume_claim:
        source = {"persistentVolumeClaim": {"claimName": checkpoint.persistent_volume_claim}}
    elif checkpoint.gcs_bucket:
        annotations[constants.GKE_GCSFUSE_ANNOTATION] = "true"
        attributes = {"bucketName": checkpoint.gcs_bucket}
        source = {"csi": {"driver": constants.GKE_GCSFUSE_DRIVER, "volumeAttributes": attributes}}
    elif checkpoint.host_path:
        source = {"hostPath": {"path": checkpoint.host_path, "type": "DirectoryOrCreate"}}
    elif _mounts(trainer, checkpoint.path):
        return  # the user's own volume is mounted there
    else:
        source = {"emptyDir": {}}
    _mount(spec, trainer, {"name": CHECKPOINT_VOLUME, **source}, checkpoint.path)


def _add_shared_memory(spec: dict[str, Any], trainer: dict[str, Any]) -> None:
    # A pod's /dev/shm has 64 MB by default: too little for DataLoader workers and NCCL.
    if not _mounts(trainer, SHARED_MEMORY_PATH):
        volume = {"name": SHARED_MEMORY_VOLUME, "emptyDir": {"medium": "Memory"}}
        _mount(spec, trainer, volume, SHARED_MEMORY_PATH)


def _mounts(container: dict[str, Any], path: str) -> bool:
    mounts = container.get("volumeMounts") or []
    return any(m.get("mountPath", "").rstrip("/") == path.rstrip("/") for m in mounts)


def _mount(
    spec: dict[str, Any], container: dict[str, Any], volume: dict[str, Any], path: str
) -> None:
    spec["volumes"] = [*(spec.get("volumes") or []), volume]
    mounts = container.get("volumeMounts") or []
    container["volumeMounts"] = [*mounts, {"name": volume["name"], "mountPath": path}]


def _add_accelerator(
    spec: dict[str, Any], trainer: dict[str, Any], accelerator: Accelerator
) -> None:
    selector = {constants.GKE_ACCELERATOR_LABEL: accelerator.type} if accelerator.type else {}
    # GKE adds this toleration only to pods that request the resource in the classic way. Without
    # it a pod stays pending.
    tolerations: list[dict[str, Any]] = [
        {"key": constants.GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}
    ]
    if accelerator.gpu and accelerator.gpu.arm64:
        selector[constants.ARCHITECTURE_LABEL] = "arm64"
        tolerations.append(_tolerating(constants.ARCHITECTURE_LABEL, "arm64"))
    if accelerator.compute_class:
        selector[constants.GKE_COMPUTE_CLASS_LABEL] = accelerator.compute_class
        tolerations.append(
            _tolerating(constants.GKE_COMPUTE_CLASS_LABEL, accelerator.compute_class)
        )
    provisioning = {"spot": constants.GKE_SPOT_LABEL, "flex-start": constants.GKE_FLEX_START_LABEL}
    label = provisioning.get(accelerator.provisioning)
    if label:
        selector[label] = "true"
        tolerations.append(_tolerating(label, "true"))
    if accelerator.provisioning == "queued":
        # Kueue selects the provisioned nodes when it admits the pods.
        tolerations.append(_tolerating(constants.GKE_QUEUED_LABEL, "true"))
    elif accelerator.max_run_seconds:
        selector[constants.GKE_MAX_RUN_LABEL] = str(accelerator.max_run_seconds)
    if accelerator.reservation:
        selector |= _reserved(accelerator.reservation)
    spec["nodeSelector"] = {
        **(spec.get("nodeSelector") or {}),
        **selector,
        **accelerator.node_selector,
    }
    spec["tolerations"] = [
        *(spec.get("tolerations") or []),
        *tolerations,
        *accelerator.tolerations,
    ]
    resources = trainer.get("resources") or {}
    if not accelerators(trainer):
        limits = {**(resources.get("limits") or {}), constants.GPU_RESOURCE: accelerator.count}
        trainer["resources"] = {**resources, "limits": limits}


def _reserved(reservation: Reservation) -> dict[str, str]:
    asked = {
        "affinity": "specific",
        "name": reservation.name,
        "project": reservation.project,
        "blocks": reservation.blocks,
        "subblocks": reservation.sub_blocks,
    }
    return {
        constants.GKE_RESERVATION_PREFIX + what: value for what, value in asked.items() if value
    }


def _tolerating(key: str, value: str) -> dict[str, str]:
    return {"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"}
