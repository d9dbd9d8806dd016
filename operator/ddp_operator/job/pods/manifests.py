"""Build a job's Service and pods from its template."""

from collections.abc import Mapping
from typing import Any

from ddp_operator.api import constants
from ddp_operator.api.job import DDPJob
from ddp_operator.api.rules import trainer_container
from ddp_operator.api.spec import Checkpoint
from ddp_operator.api.spec.memory_checkpoint import MemoryCheckpoint
from ddp_operator.api.spec.overrides import spec_of
from ddp_operator.job.membership.world import world_of
from ddp_operator.job.pods.accelerator import add_accelerator
from ddp_operator.job.pods.access import SecretKey
from ddp_operator.job.pods.avoided_nodes import keep_off, prefer_others
from ddp_operator.job.pods.environment import environment, is_spare
from ddp_operator.job.pods.fabrics import DEFAULT_SIDE_CARS, SideCars, on_fabric
from ddp_operator.job.pods.injection import inject
from ddp_operator.job.pods.schedulers import scheduled
from ddp_operator.job.pods.state import START_TIMEOUT, UNSTARTABLE_REASONS, Identity

CHECKPOINT_VOLUME = "ddp-checkpoints"
SHARED_MEMORY_VOLUME = "ddp-shared-memory"
SHARED_MEMORY_PATH = "/dev/shm"

_NEVER_BEGAN = UNSTARTABLE_REASONS | {START_TIMEOUT}


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
    spec |= {"restartPolicy": "Never", "subdomain": job.name}
    spec["hostname"] = identity.host_name(job.name)
    if spec.get("hostNetwork") and spec.get("dnsPolicy", "ClusterFirst") == "ClusterFirst":
        # By default it would use its node's name server, which does not know the ranks.
        spec["dnsPolicy"] = "ClusterFirstWithHostNet"
    if is_spare(job, identity) and (lower := job.spec.spares_priority_class_name):
        for of_another_class in ("priority", "preemptionPolicy"):
            spec.pop(of_another_class, None)
        spec["priorityClassName"] = lower
    secret, plain = (token, "") if isinstance(token, SecretKey) else (None, token)
    if secret:
        annotations[constants.ANNOTATION_TOKEN_SECRET] = secret.secret
    _add_environment(trainer, environment(job, identity, token=plain), secret)
    _add_checkpoint(spec, annotations, trainer, own.checkpoint)
    _add_shared_memory(spec, trainer)
    _add_memory_checkpoint(spec, trainer, own.memory_checkpoint)
    if own.launcher == "inject":
        inject(spec, trainer, image=launcher_image)
    if own.accelerator:
        add_accelerator(spec, trainer, own.accelerator)
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
    if own.accelerator and (fabric := own.accelerator.fabric):
        made = on_fabric(fabric, made, trainer=trainer["name"], side_cars=side_cars)
    return scheduled(job, identity, made)


def _users(marks: Mapping[str, str] | None) -> dict[str, str]:
    """Return the template's labels or annotations without the operator's own prefix."""
    return {
        key: value
        for key, value in (marks or {}).items()
        if not key.startswith(constants.OWN_PREFIX)
    }


def _add_environment(
    trainer: dict[str, Any], variables: Mapping[str, str], token: SecretKey | None
) -> None:
    ours: list[dict[str, Any]] = [{"name": name, "value": v} for name, v in variables.items()]
    if token:
        reference = {"name": token.secret, "key": token.key}
        ours.append({"name": constants.ENV_TOKEN, "valueFrom": {"secretKeyRef": reference}})
    users = trainer.get("env") or []
    taken = {entry["name"] for entry in users}
    # Ours first, so that a user's variable may refer to them as $(NAME).
    trainer["env"] = [entry for entry in ours if entry["name"] not in taken] + users


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


def _add_memory_checkpoint(
    spec: dict[str, Any], trainer: dict[str, Any], asked: MemoryCheckpoint | None
) -> None:
    if asked:
        source = {"medium": "Memory", "sizeLimit": asked.size_limit}
        volume = {"name": constants.MEMORY_VOLUME, "emptyDir": source}
        _mount(spec, trainer, volume, constants.MEMORY_PATH)


def _mounts(container: dict[str, Any], path: str) -> bool:
    mounts = container.get("volumeMounts") or []
    return any(m.get("mountPath", "").rstrip("/") == path.rstrip("/") for m in mounts)


def _mount(
    spec: dict[str, Any], container: dict[str, Any], volume: dict[str, Any], path: str
) -> None:
    spec["volumes"] = [*(spec.get("volumes") or []), volume]
    mounts = container.get("volumeMounts") or []
    container["volumeMounts"] = [*mounts, {"name": volume["name"], "mountPath": path}]
