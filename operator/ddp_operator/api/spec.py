"""`DDPJob.spec`: what a user asks for.

The CRD's schema is generated from these models, so a field's description, default and bounds are
written once. Rules that concern more than one field stand in `rules`.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from ddp_operator.api.constants import MAX_GPUS, MAX_REPLICAS


class ApiModel(BaseModel):
    """Base of all that users write: camelCase on the wire, unknown fields and loose types ("2" for
    2) refused as the API server refuses them, immutable.
    """

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, strict=True
    )


ResourceName = Annotated[
    str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
]
# https://cloud.google.com/storage/docs/buckets#naming
BucketName = Annotated[
    str, Field(min_length=3, max_length=222, pattern=r"^[a-z0-9][-a-z0-9_.]*[a-z0-9]$")
]
AbsolutePath = Annotated[str, Field(max_length=1024, pattern=r"^/.*$")]
Seconds = Annotated[int, Field(ge=1, le=10 * 365 * 24 * 3600)]


class Accelerator(ApiModel):
    """GPU nodes on GKE: node selector, GPU limit and toleration for every pod."""

    type: Annotated[
        str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    ] = Field(
        description=(
            "Value of GKE's node label cloud.google.com/gke-accelerator, "
            "such as nvidia-l4 or nvidia-h100-80gb."
        )
    )
    count: Annotated[int, Field(ge=1, le=MAX_GPUS)] = Field(
        default=1,
        description=(
            "GPUs of each pod: becomes the trainer container's nvidia.com/gpu limit "
            "where the template gives none."
        ),
    )
    provisioning: Literal["standard", "spot", "flex-start"] = Field(
        default="standard", description="How the nodes are bought on GKE."
    )
    node_selector: Annotated[
        dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=32)
    ] = Field(default_factory=dict, description="Further node labels to ask for; merged last.")
    tolerations: Annotated[list[dict[str, Any]], Field(max_length=32)] = Field(
        default_factory=list, description="Further tolerations, as in a pod; merged last."
    )


class Checkpoint(ApiModel):
    """Where training state is kept. Without a location it is an emptyDir, which dies with its
    pod.
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


class Restart(ApiModel):
    """What happens after a failure."""

    scope: Literal["Gang", "Pod"] = Field(
        default="Gang",
        description=(
            "Gang: all pods start again, which suits any script. Pod: only the failed pod is "
            "replaced, under the same identity, for trainers that form their group anew."
        ),
    )
    max_restarts: Annotated[int, Field(ge=0, le=1000)] = Field(
        default=3,
        description="Failures of the training itself that are forgiven; disruptions never count.",
    )


class DDPJobSpec(ApiModel):
    """One training job: `replicas` pods of `nprocPerNode` processes each."""

    replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = Field(
        default=1, description="Pods: PyTorch's number of nodes. Immutable except while suspended."
    )
    nproc_per_node: Literal["auto"] | Annotated[int, Field(ge=1, le=1024)] = Field(
        default="auto",
        description=(
            "Training processes in each pod. auto: the trainer container's GPU limit, else 1."
        ),
        json_schema_extra={
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": "^auto$",
            "minimum": 1,
            "maximum": 1024,
        },
    )
    backend: Literal["auto", "nccl", "gloo"] = Field(
        default="auto",
        description="auto: nccl when the trainer container has GPUs, else gloo.",
    )
    master_port: Annotated[int, Field(ge=1024, le=65535)] = Field(
        default=29500, description="Port of rank 0's rendezvous store."
    )
    template: dict[str, Any] = Field(
        description=(
            "Pod template, carried as written. The container named trainer, else the first, "
            "gets the distributed environment."
        )
    )
    accelerator: Accelerator | None = Field(
        default=None, description="GPU nodes on GKE; absent: CPU, or whatever the template says."
    )
    checkpoint: Checkpoint = Field(default_factory=Checkpoint, json_schema_extra={"default": {}})
    restart: Restart = Field(default_factory=Restart, json_schema_extra={"default": {}})
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
        default=None, description="The job fails after being active (not suspended) this long."
    )
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=10 * 365 * 24 * 3600)] | None = Field(
        default=None, description="The job is deleted this long after it has finished."
    )
