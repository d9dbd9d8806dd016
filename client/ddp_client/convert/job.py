"""Shared by all kinds of jobs: metadata, queues, GPUs, processes, and the final check."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ddp_operator.api.constants import (
    API_VERSION,
    GKE_ACCELERATOR_LABEL,
    GKE_FLEX_START_LABEL,
    GKE_PARTITION_LABEL,
    GKE_SHARING_LABEL,
    GKE_SPOT_LABEL,
    GPU_RESOURCE,
    KIND,
    KUEUE_GROUP,
    KUEUE_QUEUE,
    MULTIKUEUE,
)
from ddp_operator.api.job import DDPJob, InvalidJobError
from ddp_operator.api.rules import trainer_container, warnings
from ddp_operator.api.spec.accelerator import Accelerator
from ddp_operator.api.spec.overrides import kinds

from ddp_client.convert.notes import ConversionError, Notes
from ddp_client.convert.pods import Pods, check, speaks_of_ranks
from ddp_client.convert.references import is_foreign
from ddp_client.convert.source import Source
from ddp_client.documents import as_stored

_KUEUE: Final = ("kueue.x-k8s.io/", "provreq.kueue.x-k8s.io/")
"""Prefixes of labels and annotations that Kueue reads; for DDPJobs it reads them on pods."""
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
MAX_RESTARTS: Final = 1000
GANG: Final = (
    "set spec.scheduling.gang to a gang scheduler other than Volcano, or queueName to a Kueue queue"
)
_HINTS: Final = {
    "alpha.jobset.sigs.k8s.io/exclusive-topology": (
        "spec.scheduling.topology keeps pods near each other; no field keeps other jobs away"
    )
}


@dataclass(frozen=True)
class Metadata:
    """A job's own metadata, and the metadata for its pods."""

    fields: dict[str, Any]
    queue: str | None
    labels: dict[str, str]
    annotations: dict[str, str]
    """Kueue's annotations, for the pods."""


def metadata(source: Source, notes: Notes) -> Metadata:
    """Take a job's metadata."""
    meta = source.at("metadata")
    # Fields that the API server sets.
    meta.forget("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields")
    meta.forget("selfLink")
    name, prefix = meta.word("name"), meta.word("generateName")
    if not name:
        if not prefix:
            raise ConversionError("metadata.name: missing; give the job a name")
        name = prefix.rstrip("-")
        notes.changed(
            "metadata.generateName", f"the name is {name}; give each job a different name"
        )
    fields: dict[str, Any] = {"name": name}
    if namespace := meta.word("namespace"):
        fields["namespace"] = namespace
    labels, of_pods = _sorted_out(meta.fields("labels"), "metadata.labels", notes)
    annotations, pods_annotations = _sorted_out(
        meta.fields("annotations"), "metadata.annotations", notes
    )
    by_annotation = pods_annotations.pop(KUEUE_QUEUE, None)  # Kueue's older form
    queue = of_pods.pop(KUEUE_QUEUE, by_annotation)
    if labels:
        fields["labels"] = labels
    if annotations:
        fields["annotations"] = annotations
    return Metadata(fields, queue, of_pods, pods_annotations)


def with_metadata(template: dict[str, Any], meta: Metadata, path: str, notes: Notes) -> str | None:
    """Add the job's metadata for pods to a template; return the job's queue, if any."""
    check(template, path)
    own = template.setdefault("metadata", {})
    for name, values in (("labels", meta.labels), ("annotations", meta.annotations)):
        if values:
            own[name] = {**values, **own.get(name, {})}
    labels = own.get("labels") or {}
    queue: str | None = labels.pop(KUEUE_QUEUE, None)
    if queue and meta.queue and queue != meta.queue:
        field = f"{path}.metadata.labels[{KUEUE_QUEUE}]"
        notes.dropped(field, f"the job's own label {meta.queue} is used")
    if labels.pop(KUEUE_GROUP, None) is not None:
        notes.dropped(f"{path}.metadata.labels", f"the operator sets {KUEUE_GROUP}")
    if "labels" in own and not labels:
        del own["labels"]
    if not own:
        del template["metadata"]
    return meta.queue or queue


def queued(spec: dict[str, Any], queue: str | None, notes: Notes) -> None:
    """Set the Kueue queue of a job, without which MultiKueue cannot run it."""
    if not queue and (who := spec.pop("managedBy", None)):
        notes.dropped("managedBy", f"{who} runs only jobs in Kueue's queues")
    if not queue:
        return
    spec.setdefault("scheduling", {})["queueName"] = queue
    if spec.pop("suspend", None):
        notes.changed(
            "spec.suspend", "Kueue suspended the job until admission; here it holds back the pods"
        )


def restarts(limit: int, field: str, notes: Notes) -> dict[str, Any]:
    """Return the restart policy for a number of restarts."""
    if limit > MAX_RESTARTS:
        notes.changed(field, f"{limit} is more than a DDPJob allows; set to {MAX_RESTARTS}")
    return {"maxRestarts": min(limit, MAX_RESTARTS)}


def run_policy(source: Source, own: str, result: dict[str, Any], notes: Notes) -> None:
    """Read time limits, suspend and the managing controller; `own`: the usual one."""
    for name in ("ttlSecondsAfterFinished", "activeDeadlineSeconds"):
        if (seconds := source.integer(name)) is not None:
            result[name] = seconds
    if source.flag("suspend"):
        result["suspend"] = True
    who = source.word("managedBy")
    if who == MULTIKUEUE:  # it also runs DDPJobs
        result["managedBy"] = who
    elif who and who != own:
        notes.dropped(source.field("managedBy"), f"{who} does not manage DDPJobs")


def processes(pods: Pods, setting: int | str | None, field: str, notes: Notes) -> int | str:
    """Return the number of processes of each pod."""
    number = pods.processes if setting in (None, "auto") and pods.processes else setting
    if isinstance(number, int):
        count: int | str = number
    elif pods.starts == "launcher":
        count = "auto"
        if not pods.gpus:
            notes.changed(
                field,
                "without GPUs torchrun starts one process per CPU; here auto is one per pod: set "
                "spec.nprocPerNode for more",
            )
    elif pods.gpus <= 1:
        count = "auto"
    elif pods.starts == "python":
        count = 1
        notes.changed(
            field,
            f"without torchrun the command is one process for {pods.gpus} GPUs, as before; for "
            "one process per GPU start it with torchrun and remove spec.nprocPerNode",
        )
    else:
        count = "auto"
        notes.changed(
            field,
            f"the manifest does not show what the image starts; set to {pods.gpus} processes per "
            "pod, as with torchrun; set spec.nprocPerNode: 1 if it starts one. A script that uses "
            "RANK and WORLD_SIZE for pods must use PET_NODE_RANK and PET_NNODES",
        )
    many = count > 1 if isinstance(count, int) else pods.gpus > 1
    if many and speaks_of_ranks(trainer_container(pods.template)):
        notes.changed(
            field,
            "with several processes per pod, RANK and WORLD_SIZE count processes; use "
            "PET_NODE_RANK and PET_NNODES where the command means pods",
        )
    return count


def accelerator(templates: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return an accelerator for GKE's node selectors, if all templates agree; otherwise None."""
    choices = [_accelerator(template) for template in templates]
    if choices[0] is None or any(one != choices[0] for one in choices):
        return None  # the node selectors stay and have the same effect
    for template in templates:
        selector = template["spec"]["nodeSelector"]
        for label in (GKE_ACCELERATOR_LABEL, GKE_SPOT_LABEL, GKE_FLEX_START_LABEL):
            selector.pop(label, None)
        if not selector:
            del template["spec"]["nodeSelector"]
    return choices[0]


def checked(meta: Metadata, spec: Mapping[str, Any], notes: Notes) -> dict[str, Any]:
    """Return the manifest, and note what may be wrong in its command.

    Raises:
        ConversionError: the operator would refuse it.
    """
    manifest = {"apiVersion": API_VERSION, "kind": KIND, "metadata": meta.fields, "spec": spec}
    try:
        parsed = DDPJob.parse(as_stored(manifest))
    except InvalidJobError as error:
        raise ConversionError(f"the operator would refuse the resulting {KIND}: {error}") from None
    for kind, _ in kinds(parsed.spec):
        _check_mounts(kind.template["spec"])
    for text in warnings(parsed.spec):
        notes.changed("the command", text)
    return manifest


def _check_mounts(pod: Mapping[str, Any]) -> None:
    """Raise an error if a mount has no volume, since the API server would refuse the pods."""
    volumes = [volume.get("name") for volume in pod.get("volumes") or ()]  # of any type
    for container in (*pod["containers"], *(pod.get("initContainers") or ())):
        for mount in container.get("volumeMounts") or ():
            if (name := mount.get("name")) not in volumes:
                raise ConversionError(
                    f"container {container.get('name')} mounts {name}, which is not in the "
                    f"template's volumes; add it there, for example {{name: {name}, "
                    "persistentVolumeClaim: {claimName: NAME}}, and create the claim"
                )


def _sorted_out(
    values: dict[str, Any], path: str, notes: Notes
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the values for the job, and those for its pods."""
    values.pop(_LAST_APPLIED, None)
    stay, go = {}, {}
    for name, value in values.items():
        if not isinstance(value, str):
            raise ConversionError(f"{path}[{name}]: must be a string; quote it")
        if name.startswith(_KUEUE):
            go[name] = value
        elif is_foreign(name):
            notes.dropped(f"{path}[{name}]", _HINTS.get(name, "it has no effect on a DDPJob"))
        else:
            stay[name] = value
    return stay, go


def _accelerator(template: dict[str, Any]) -> dict[str, Any] | None:
    selector = template["spec"].get("nodeSelector") or {}
    limits = (trainer_container(template).get("resources") or {}).get("limits") or {}
    count = str(limits.get(GPU_RESOURCE, ""))
    fields = (
        {"type": selector.get(GKE_ACCELERATOR_LABEL), "count": int(count or 0)}
        if (count == "" or (count.isdecimal() and len(count) < 4))
        else {}
    )
    if not fields.get("count") or {GKE_SHARING_LABEL, GKE_PARTITION_LABEL} & set(selector):
        return None
    ways = {GKE_SPOT_LABEL: "spot", GKE_FLEX_START_LABEL: "flex-start"}
    provisioning = [way for label, way in ways.items() if selector.get(label) == "true"]
    if len(provisioning) > 1 or any(selector.get(label, "true") != "true" for label in ways):
        return None
    fields |= {"provisioning": provisioning[0]} if provisioning else {}
    try:
        Accelerator.model_validate(fields)
    except ValueError:
        return None
    return fields if fields["type"] else None
