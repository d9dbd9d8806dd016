"""`DDPJob.spec`: what a user asks for.

The CRD's schema is generated from these models, so a field's description, default and bounds are
written once. Rules that concern more than one field stand in `rules`.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from ddp_operator.api.constants import DEFAULT_STATUS_PORT, MAX_REPLICAS, MAX_SPARES
from ddp_operator.api.spec.accelerator import Accelerator
from ddp_operator.api.spec.base import ApiModel, Processes, ResourceName
from ddp_operator.api.spec.elastic import Elastic
from ddp_operator.api.spec.restart import Restart
from ddp_operator.api.spec.scheduling import Scheduling
from ddp_operator.api.values.expressions import group_names, valid

# https://cloud.google.com/storage/docs/buckets#naming
BucketName = Annotated[
    str, Field(min_length=3, max_length=222, pattern=r"^[a-z0-9][-a-z0-9_.]*[a-z0-9]$")
]
AbsolutePath = Annotated[str, Field(max_length=1024, pattern=r"^/.*$")]
MAX_SECONDS = 10 * 365 * 24 * 3600
Seconds = Annotated[int, Field(ge=1, le=MAX_SECONDS)]


LOG_GROUPS = ("step", "totalSteps", "loss", "samplesPerSecond")
"""What may be read of progress in a log."""


def _reads_progress(expression: str) -> str:
    names = group_names(valid(expression))
    strange = sorted(names - set(LOG_GROUPS))
    if strange:
        raise ValueError(f"group {strange[0]} is none of {', '.join(LOG_GROUPS)}; rename it")
    return expression


class Checkpoint(ApiModel):
    """Where training state is kept. Without a location it is an emptyDir: each pod has its own,
    which goes with the pod. Once rank 0 has saved there, a failure restarts all pods.
    """

    path: AbsolutePath = Field(
        default="/checkpoints",
        description="Where it is mounted in every pod; DDP_CHECKPOINT_DIR in the environment.",
    )
    persistent_volume_claim: ResourceName | None = Field(
        default=None,
        description="Name of a claim in the job's namespace; its access mode must allow all pods.",
    )
    gcs_bucket: BucketName | None = Field(
        default=None, description="Bucket mounted through GKE's Cloud Storage FUSE CSI driver."
    )
    host_path: AbsolutePath | None = Field(
        default=None, description="Directory on the node: for single-node and test clusters."
    )


class Override(ApiModel):
    """Pods that differ from the others."""

    indexes: Annotated[
        list[Annotated[str, Field(max_length=11, pattern=r"^[0-9]{1,5}(-[0-9]{1,5})?$")]],
        Field(min_length=1, max_length=16),
    ] = Field(
        description='Indexes of pods, such as "0", and ranges of them, such as "2-5"; from 0 on.'
    )
    nproc_per_node: Processes | None = Field(
        default=None, description="Takes the place of spec.nprocPerNode in these pods."
    )
    accelerator: Accelerator | None = Field(
        default=None, description="Takes the place of spec.accelerator, as a whole, in these pods."
    )
    template: dict[str, Any] | None = Field(
        default=None,
        description=(
            "JSON merge patch (RFC 7386) of spec.template: objects are merged, null removes, and "
            "lists, such as containers, are replaced as a whole."
        ),
    )


class ProgressSource(ApiModel):
    """Where progress is read that no trainer reports by itself."""

    log_pattern: Annotated[
        str, Field(min_length=1, max_length=256), AfterValidator(_reads_progress)
    ] = Field(
        description=(
            "Regular expression (RE2's syntax) that is searched for in each of the last lines of "
            "pod 0's log, while its trainer reports nothing on the status port. Its named groups "
            "are read: step, and if you like totalSteps, loss and samplesPerSecond; of each the "
            "newest."
        ),
    )


class DDPJobSpec(ApiModel):
    """One training job: `replicas` pods of `nprocPerNode` processes each."""

    replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = Field(
        default=1, description="Pods: PyTorch's number of nodes."
    )
    nproc_per_node: Processes = Field(
        default="auto",
        description=(
            "Training processes in each pod. auto: the trainer container's limit of GPUs or other "
            "accelerators, whoever makes them, else 1."
        ),
    )
    backend: Literal["auto", "nccl", "gloo"] = Field(
        default="auto",
        description="auto: nccl when the trainer container has accelerators, else gloo.",
    )
    master_port: Annotated[int, Field(ge=1024, le=65535)] = Field(
        default=29500, description="Port of rank 0's rendezvous store."
    )
    status_port: Annotated[int, Field(ge=1024, le=65535)] = Field(
        default=DEFAULT_STATUS_PORT,
        description="Port of each pod on which a trainer may report its progress (GET /status).",
    )
    template: dict[str, Any] = Field(
        description=(
            "Pod template, carried as written. One container gets the distributed environment: "
            "the one named trainer, else the one that kubectl.kubernetes.io/default-container "
            "names, else the only one with accelerators, else the first."
        )
    )
    launcher: Literal["auto", "inject"] = Field(
        default="auto",
        description=(
            "inject: the operator copies the bundled launcher into the pods, whatever their image, "
            "and has it run the trainer container's command and args once for each rank; it needs "
            "Python 3.11 or newer in the image. auto: image and command are run as they are."
        ),
    )
    accelerator: Accelerator | None = Field(
        default=None, description="GPU nodes on GKE; absent: CPU, or whatever the template says."
    )
    overrides: Annotated[list[Override], Field(max_length=8)] | None = Field(
        default=None,
        description=(
            "Pods that differ from the others, such as nodes with fewer GPUs. Ranks count over all "
            "pods in the order of their indexes."
        ),
    )
    scheduling: Scheduling | None = Field(
        default=None,
        description=(
            "Who decides when pods get their nodes; absent: the cluster's scheduler, pod by pod."
        ),
    )
    checkpoint: Checkpoint = Field(default_factory=Checkpoint, json_schema_extra={"default": {}})
    restart: Restart = Field(default_factory=Restart, json_schema_extra={"default": {}})
    success_policy: Literal["AllPods", "Rank0"] = Field(
        default="AllPods",
        description=(
            "When the job has succeeded. AllPods: all pods have completed. Rank0: the pod of rank "
            "0 has; the others are deleted as cleanPodPolicy says, whatever they do."
        ),
    )
    spares: Annotated[int, Field(ge=0, le=MAX_SPARES)] = Field(
        default=0,
        description=(
            "Pods that wait without a rank, started and on nodes of their own where there are any: "
            "when a pod is lost, one of them takes its place at once. They need the bundled "
            "launcher in the pods. It may be changed while the job runs."
        ),
    )
    spares_priority_class_name: ResourceName | None = Field(
        default=None,
        description=(
            "Takes the place of the template's priorityClassName in pods that are made without a "
            "rank, so that the scheduler may take their nodes first. A spare that takes a lost "
            "pod's place keeps it: Kubernetes changes no pod's priority. Where another job takes "
            "its node then, the next spare takes over. It may be changed while the job runs, and "
            "is that of the next spares."
        ),
    )
    elastic: Elastic | None = Field(
        default=None,
        description=(
            "Train on with fewer pods while some are missing, and with more when they can be had. "
            "It needs the bundled launcher in the pods."
        ),
    )
    progress: ProgressSource | None = Field(
        default=None, description="For trainers that do not report their progress by themselves."
    )
    isolation: Literal["None", "Job"] = Field(
        default="None",
        description=(
            "Job: a NetworkPolicy lets in the job's own pods, the operator on the status port, and "
            "nobody else. It may be changed while the job runs, and touches no pod."
        ),
    )
    suspend: bool = Field(
        default=False,
        description="true: no pods, state kept. false again: training goes on from its checkpoint.",
    )
    clean_pod_policy: Literal["Running", "All", "None"] = Field(
        default="Running",
        description=(
            "Which pods go when the job has finished. Running: those still running, so that GPUs "
            "are released and finished pods keep their logs."
        ),
    )
    active_deadline_seconds: Seconds | None = Field(
        default=None,
        description=(
            "The job fails after being active (neither suspended nor in a queue) this long."
        ),
    )
    progress_deadline_seconds: Seconds | None = Field(
        default=None,
        description="A reported step that stays the same for this long is a failure: NoProgress.",
    )
    scheduling_timeout_seconds: Seconds | None = Field(
        default=None,
        description=(
            "Pods of which only some get a node within this time are all given up, and created "
            "again later."
        ),
    )
    start_timeout_seconds: Seconds = Field(
        default=600,
        description=(
            "A pod in which no process has started so long after it got its node is replaced on "
            "another one, three times as long where only its image is missing."
        ),
    )
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=MAX_SECONDS)] | None = Field(
        default=None, description="The job is deleted this long after it has finished."
    )

    @property
    def kueue_queue(self) -> str | None:
        """Kueue's queue; None: the pods are in none."""
        return self.scheduling.kueue_queue if self.scheduling else None


POD_FIELDS = (
    "replicas",
    "nproc_per_node",
    "backend",
    "master_port",
    "status_port",
    "template",
    "launcher",
    "accelerator",
    "overrides",
    "scheduling",
    "checkpoint",
)
"""Fields of the spec that shape pods: immutable once a pod has run, except while suspended. All
others take effect at once and touch no pod."""
