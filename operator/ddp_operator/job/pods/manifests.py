"""Build a job's Service and pods from its template.

A pod has two parts. Its shape follows from the spec alone, so that objects which describe future
pods, such as a Workload, never change by themselves. The instance adds what an attempt needs.
"""

from collections.abc import Mapping
from typing import Any

from ddp_operator.api import constants
from ddp_operator.api.code import PARTS_VOLUME, Code
from ddp_operator.api.job import DDPJob
from ddp_operator.api.rules import trainer_container
from ddp_operator.api.spec import Checkpoint, DDPJobSpec
from ddp_operator.api.spec.checkpoint import MemoryCheckpoint
from ddp_operator.api.spec.overrides import spec_of
from ddp_operator.job.membership.world import world_of
from ddp_operator.job.pods.accelerator import add_accelerator
from ddp_operator.job.pods.access import SECRET_ENTRY, PodToken
from ddp_operator.job.pods.avoided_nodes import keep_off, prefer_others
from ddp_operator.job.pods.environment import environment, is_spare
from ddp_operator.job.pods.fabrics import DEFAULT_SIDE_CARS, SideCars, on_fabric
from ddp_operator.job.pods.injection import inject
from ddp_operator.job.pods.schedulers import in_queue, scheduled
from ddp_operator.job.pods.state import Identity
from ddp_operator.ports import Manifest

CHECKPOINT_VOLUME = "ddp-checkpoints"
SHARED_MEMORY_VOLUME = "ddp-shared-memory"
SHARED_MEMORY_PATH = "/dev/shm"


def owner_reference(name: str, uid: str) -> dict[str, Any]:
    """Return the reference that deletes an object with its job."""
    return {
        "apiVersion": constants.API_VERSION,
        "kind": constants.KIND,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def own_metadata(job: DDPJob) -> dict[str, Any]:
    """Return the metadata of an object that a job has one of."""
    return {
        "name": job.name,
        "namespace": job.namespace,
        "labels": {constants.LABEL_JOB_NAME: job.name},
        "ownerReferences": [owner_reference(job.name, job.uid)],
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
    token: PodToken | None = None,
    side_cars: SideCars = DEFAULT_SIDE_CARS,
    launcher_image: str = "",
) -> dict[str, Any]:
    """Return one pod, built from the user's template.

    `token` and `launcher_image` may be left out if the pod is not created; only `launcher: inject`
    uses the latter. The pod shares unchanged parts with the template, so change neither in place.
    """
    common = shape(
        job.name, job.spec, identity.index, side_cars=side_cars, launcher_image=launcher_image
    )
    return instance(common, job, identity, token=token)


def shape(
    name: str,
    spec: DDPJobSpec,
    index: int,
    *,
    side_cars: SideCars = DEFAULT_SIDE_CARS,
    launcher_image: str = "",
) -> dict[str, Any]:
    """Return what all pods of an index have in common, in each attempt and cluster: it follows from
    the job's name and spec alone.
    """
    own = spec_of(spec, index)
    template = own.template
    metadata = template.get("metadata") or {}
    made: dict[str, Any] = dict(template["spec"])
    # A plain script reports its failure in its log.
    trainer: dict[str, Any] = {
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **trainer_container(template),
    }
    annotations = {
        **_users(metadata.get("annotations")),
        constants.ANNOTATION_TRAINER: trainer["name"],
    }
    _set_container(made, trainer)
    made |= {"restartPolicy": "Never", "subdomain": name}
    if made.get("hostNetwork") and made.get("dnsPolicy", "ClusterFirst") == "ClusterFirst":
        # By default it would use its node's name server, which does not know the ranks.
        made["dnsPolicy"] = "ClusterFirstWithHostNet"
    _add_checkpoint(made, annotations, trainer, own.checkpoint)
    _add_shared_memory(made, trainer)
    _add_memory_checkpoint(made, trainer, own.memory_checkpoint)
    if own.launcher == "inject":
        inject(made, trainer, image=launcher_image)
    if own.accelerator:
        add_accelerator(made, trainer, own.accelerator)
    labels = {**_users(metadata.get("labels")), constants.LABEL_JOB_NAME: name}
    common = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, "labels": labels, "annotations": annotations},
        "spec": made,
    }
    if own.accelerator and (fabric := own.accelerator.fabric):
        gpu = own.accelerator.gpu
        common = on_fabric(fabric, common, trainer=trainer["name"], gpu=gpu, side_cars=side_cars)
    return in_queue(spec, index, common)


def instance(
    common: Manifest, job: DDPJob, identity: Identity, *, token: PodToken | None = None
) -> dict[str, Any]:
    """Return one pod of an attempt, given its shape: add name, environment, token and affinity."""
    metadata, spec = common["metadata"], dict(common["spec"])
    labels = {
        **metadata["labels"],
        constants.LABEL_JOB_UID: job.uid,
        constants.LABEL_INDEX: str(identity.slot),
        constants.LABEL_ATTEMPT: str(identity.attempt),
        constants.LABEL_REPLACEMENT: str(identity.replacement),
        constants.LABEL_SERVING: "true",
    }
    annotations = {**metadata["annotations"], constants.ANNOTATION_SPEC_HASH: job.spec_hash}
    if generation := world_of(job).generation:
        annotations[constants.ANNOTATION_GENERATION] = str(generation)
    if token:
        labels[constants.LABEL_TOKEN_KEY] = token.key
    spec["hostname"] = identity.host_name(job.name)
    _set_code(job, spec, annotations)
    spare = is_spare(job, identity)
    if spare and (lower := job.spec.spares_priority_class_name):
        for of_another_class in ("priority", "preemptionPolicy"):
            spec.pop(of_another_class, None)
        spec["priorityClassName"] = lower
    trains = annotations[constants.ANNOTATION_TRAINER]
    trainer = next(dict(c) for c in spec["containers"] if c.get("name") == trains)
    variables = environment(job, identity, token=token.plain if token else "")
    _add_environment(trainer, variables, secret=token.secret if token else "")
    _set_container(spec, trainer)
    notes = job.status.bookkeeping
    barred = dict.fromkeys((*notes.barred_nodes, *(notes.nodes_to_leave if spare else ())))
    keep_off(spec, barred)
    failed = {record.name: record.failures for record in notes.nodes}
    others = (name for name in job.status.excluded_nodes if name not in barred)
    prefer_others(spec, {name: failed.get(name, 0) for name in others})
    made = {
        **common,
        "metadata": {
            **metadata,
            "name": identity.pod_name(job.name),
            "namespace": job.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [owner_reference(job.name, job.uid)],
        },
        "spec": spec,
    }
    return scheduled(job, identity, made)


def _set_container(spec: dict[str, Any], changed: Mapping[str, Any]) -> None:
    spec["containers"] = [
        changed if c.get("name") == changed["name"] else c for c in spec["containers"]
    ]


def _set_code(job: DDPJob, spec: dict[str, Any], annotations: dict[str, str]) -> None:
    """Give the pod the code of its group, if it is not that of the template."""
    code = Code.parse(job.status.bookkeeping.code)
    if code is not None:
        annotations[constants.ANNOTATION_CODE] = code.id
        spec["volumes"] = [
            code.volume(job.name) if volume.get("name") == PARTS_VOLUME else volume
            for volume in spec.get("volumes") or ()
        ]


def _users(marks: Mapping[str, str] | None) -> dict[str, str]:
    """Return the template's labels or annotations without the operator's own prefix."""
    return {
        key: value
        for key, value in (marks or {}).items()
        if not key.startswith(constants.OWN_PREFIX)
    }


def _add_environment(trainer: dict[str, Any], variables: Mapping[str, str], *, secret: str) -> None:
    ours: list[dict[str, Any]] = [{"name": name, "value": v} for name, v in variables.items()]
    if secret:
        reference = {"name": secret, "key": SECRET_ENTRY}
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
    volumes = spec.get("volumes") or []
    claim = volume.get("persistentVolumeClaim")
    # Kubelets of many releases never start a pod that names a claim in two volumes.
    same = (v["name"] for v in volumes if claim and v.get("persistentVolumeClaim") == claim)
    if name := next(same, None):
        volume = {"name": name}
    else:
        spec["volumes"] = [*volumes, volume]
    mounts = container.get("volumeMounts") or []
    container["volumeMounts"] = [*mounts, {"name": volume["name"], "mountPath": path}]
