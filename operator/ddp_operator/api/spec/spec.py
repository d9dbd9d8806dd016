"""`DDPJob.spec`: what a user asks for.

The CRD's schema is generated from these models, so each description, default and bound is written
once. Rules that concern more than one field are in `rules`.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from ddp_operator.api.constants import CONTROLLER, DEFAULT_STATUS_PORT, MAX_REPLICAS, MAX_SPARES
from ddp_operator.api.spec.accelerator import Accelerator
from ddp_operator.api.spec.base import MAX_SECONDS, ApiModel, Processes, ResourceName, Seconds
from ddp_operator.api.spec.checkpoint import Checkpoint, MemoryCheckpoint
from ddp_operator.api.spec.elastic import Elastic
from ddp_operator.api.spec.restart import Restart
from ddp_operator.api.spec.scheduling import Scheduling, Topology
from ddp_operator.api.values.expressions import group_names, valid

ControllerName = Annotated[
    str,
    Field(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[-A-Za-z0-9._~/]+$"),
]
"""A domain and a path, as in `Job.spec.managedBy` of Kubernetes."""


LOG_GROUPS = ("step", "totalSteps", "loss", "accuracy", "samplesPerSecond")
"""Values that can be read from a log."""


def _reads_progress(expression: str) -> str:
    names = group_names(valid(expression))
    strange = sorted(names - set(LOG_GROUPS))
    if strange:
        raise ValueError(f"unknown group {strange[0]}; use {', '.join(LOG_GROUPS)}")
    return expression


class Override(ApiModel):
    """Settings for some pods that differ from the others."""

    indexes: Annotated[
        list[Annotated[str, Field(max_length=11, pattern=r"^[0-9]{1,5}(-[0-9]{1,5})?$")]],
        Field(min_length=1, max_length=16),
    ] = Field(description='Pod indexes, such as "0", and ranges, such as "2-5". They start at 0.')
    nproc_per_node: Processes | None = Field(
        default=None, description="Replaces spec.nprocPerNode in these pods."
    )
    accelerator: Accelerator | None = Field(
        default=None, description="Replaces the whole of spec.accelerator in these pods."
    )
    template: dict[str, Any] | None = Field(
        default=None,
        description=(
            "JSON merge patch (RFC 7386) for spec.template: objects are merged, null removes a "
            "field, and lists, such as containers, are replaced as a whole."
        ),
    )


class ProgressSource(ApiModel):
    """Where to read the progress of a trainer that does not report it."""

    log_pattern: Annotated[
        str, Field(min_length=1, max_length=256), AfterValidator(_reads_progress)
    ] = Field(
        description=(
            "Regular expression (RE2 syntax) to search for in the last lines of pod 0's log, while "
            "the trainer reports nothing on the status port. It must have the named group step, "
            "and may have totalSteps, loss, accuracy and samplesPerSecond. The newest value of "
            "each group counts."
        ),
    )


class DDPJobSpec(ApiModel):
    """One training job: `replicas` pods of `nprocPerNode` processes each."""

    replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = Field(
        default=1, description="Number of pods (nodes, in PyTorch's terms)."
    )
    nproc_per_node: Processes = Field(
        default="auto",
        description=(
            "Training processes in each pod. auto: the trainer container's limit of GPUs or other "
            "accelerators of any vendor, or 1 without such a limit."
        ),
    )
    backend: Literal["auto", "nccl", "gloo"] = Field(
        default="auto",
        description=(
            "Backend of the process group. auto: nccl if the trainer container has accelerators, "
            "otherwise gloo."
        ),
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
            "Pod template, passed on as written. One container gets the distributed environment: "
            "the one named trainer, else the one that the annotation "
            "kubectl.kubernetes.io/default-container names, else the only one with accelerators, "
            "else the first."
        )
    )
    launcher: Literal["auto", "inject"] = Field(
        default="auto",
        description=(
            "auto: run image and command as they are. inject: copy the bundled launcher into the "
            "pods, with any image. The launcher runs the trainer container's command and args once "
            "for each rank. The image needs Python 3.11 or newer."
        ),
    )
    accelerator: Accelerator | None = Field(
        default=None, description="GPU nodes on GKE. Default: CPU, or what the template asks for."
    )
    overrides: Annotated[list[Override], Field(max_length=8)] | None = Field(
        default=None,
        description=(
            "Pods that differ from the others, such as pods on nodes with fewer GPUs. Ranks are "
            "numbered over all pods in the order of their indexes."
        ),
    )
    scheduling: Scheduling | None = Field(
        default=None,
        description=(
            "Queue, gang scheduler and topology. Default: the cluster's scheduler places each pod "
            "by itself."
        ),
    )
    checkpoint: Checkpoint = Field(default_factory=Checkpoint, json_schema_extra={"default": {}})
    memory_checkpoint: MemoryCheckpoint | None = Field(
        default=None,
        description=(
            "Checkpoints in the memory of the pods, which survive lost processes and lost pods. "
            "Needs the bundled launcher in the pods, and a script that calls ddp_trainer.memory."
        ),
    )
    restart: Restart = Field(default_factory=Restart, json_schema_extra={"default": {}})
    success_policy: Literal["AllPods", "Rank0"] = Field(
        default="AllPods",
        description=(
            "When the job succeeds. AllPods: when all pods have completed. Rank0: when the pod of "
            "rank 0 has completed. The other pods are then deleted by cleanPodPolicy, even if they "
            "still train."
        ),
    )
    spares: Annotated[int, Field(ge=0, le=MAX_SPARES)] = Field(
        default=0,
        description=(
            "Pods that wait without a rank, started, and on nodes of their own if available. When "
            "a pod is lost, a spare takes its place at once. Needs the bundled launcher in the "
            "pods. May be changed while the job runs."
        ),
    )
    spares_priority_class_name: ResourceName | None = Field(
        default=None,
        description=(
            "Replaces the template's priorityClassName in spares, so that the scheduler may take "
            "their nodes first. A spare that takes a lost pod's place keeps this priority, because "
            "Kubernetes changes no pod's priority. If another job then takes its node, the next "
            "spare takes over. May be changed while the job runs; the change applies to new "
            "spares."
        ),
    )
    elastic: Elastic | None = Field(
        default=None,
        description=(
            "Continue training with fewer pods while some are missing, and with more when they are "
            "available. Needs the bundled launcher in the pods."
        ),
    )
    progress: ProgressSource | None = Field(
        default=None, description="For trainers that do not report their progress by themselves."
    )
    isolation: Literal["None", "Job"] | None = Field(
        default=None,
        description=(
            "Job: a NetworkPolicy admits only the job's own pods, and the operator on the status "
            "port. None: the operator creates no NetworkPolicy. Default: the operator's option "
            "--isolation, which is Job in its manifests. May be changed while the job runs; it "
            "affects no pod."
        ),
    )
    suspend: bool = Field(
        default=False,
        description=(
            "true: delete the pods and keep the state. false again: training resumes from its "
            "checkpoint."
        ),
    )
    clean_pod_policy: Literal["Running", "All", "None"] = Field(
        default="Running",
        description=(
            "Which pods to delete when the job has finished. Running: those that still run, which "
            "releases GPUs and keeps the logs of finished pods. All: all pods. None: no pod."
        ),
    )
    active_deadline_seconds: Seconds | None = Field(
        default=None,
        description=(
            "The job fails when it has been active (neither suspended nor in a queue) for this "
            "long, in seconds."
        ),
    )
    progress_deadline_seconds: Seconds | None = Field(
        default=None,
        description=(
            "If the reported step does not change for this many seconds before the last step, the "
            "job has a failure: NoProgress."
        ),
    )
    scheduling_timeout_seconds: Seconds | None = Field(
        default=None,
        description=(
            "If only some pods get a node within this many seconds, all release their nodes and "
            "are created again later. Default: 600 for restarts where a queue provides the nodes "
            "(accelerator.provisioning: queued), otherwise no limit."
        ),
    )
    start_timeout_seconds: Seconds = Field(
        default=600,
        description=(
            "A pod in which no process starts within this many seconds after it got its node is "
            "replaced on another node. If only its image is missing, it may take three times as "
            "long."
        ),
    )
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=MAX_SECONDS)] | None = Field(
        default=None, description="The job is deleted this many seconds after it has finished."
    )
    managed_by: ControllerName | None = Field(
        default=None,
        description=(
            "Controller that runs the job. ddp-operator.io/ddpjob-controller or absent: this "
            "operator. kueue.x-k8s.io/multikueue: MultiKueue runs the job in another cluster and "
            "copies its status here; needs scheduling.queueName. The operator leaves jobs of any "
            "other controller alone. Cannot be changed."
        ),
    )

    @property
    def managed_elsewhere(self) -> bool:
        """Whether another controller runs the job, so that the operator creates no pods for it."""
        return self.managed_by not in (None, CONTROLLER)

    @property
    def min_size(self) -> int:
        """The fewest pods that a job trains with."""
        return (self.elastic and self.elastic.min_replicas) or self.replicas

    @property
    def max_size(self) -> int:
        """The most pods of a job's group."""
        return (self.elastic and self.elastic.max_replicas) or self.replicas

    @property
    def kueue_queue(self) -> str | None:
        """Kueue's queue, or None if the pods are in none."""
        return self.scheduling.kueue_queue if self.scheduling else None

    @property
    def placed_together(self) -> bool:
        """Whether a queue or a gang scheduler places the fewest pods together, all or none, and
        each further pod by itself.
        """
        gang = self.scheduling.gang if self.scheduling else "none"
        return self.kueue_queue is not None or gang != "none"

    @property
    def topology(self) -> Topology | None:
        """How close to each other the pods are placed, if the job asks for that."""
        return self.scheduling.topology if self.scheduling else None


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
    "memory_checkpoint",
)
"""Fields of the spec that shape pods: immutable once a pod has run, except while suspended. All
others take effect at once and affect no pod."""
