"""The names by which the API server and other tools know this operator's objects."""

GROUP = "ddp-operator.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "DDPJob"
PLURAL = "ddpjobs"
SINGULAR = "ddpjob"
SHORT_NAME = "ddp"

OWN_PREFIX = f"{GROUP}/"
"""Of all labels and annotations that the operator reads: those of pods are its own to set."""

LABEL_JOB_NAME = f"{GROUP}/job-name"
LABEL_INDEX = f"{GROUP}/replica-index"
LABEL_ATTEMPT = f"{GROUP}/attempt"
LABEL_REPLACEMENT = f"{GROUP}/replacement"
LABEL_SERVING = f"{GROUP}/serving"
"""`true` on pods that the job's Service lists in DNS; absent on a pod that was fenced out."""
ANNOTATION_SPEC_HASH = f"{GROUP}/spec-hash"
ANNOTATION_GENERATION = f"{GROUP}/generation"
"""Of the job's group, when the pod was made."""
ANNOTATION_SIGNS = f"{GROUP}/signed-requests"
"""Says that a pod was made by an operator that signs its requests, and so has a launcher, if any,
that knows signatures."""
ANNOTATION_TOKEN_SECRET = f"{GROUP}/token-secret"
"""Name of the Secret that the pod's token is from; absent on a pod with the token in plain text."""
ANNOTATION_TRAINER = f"{GROUP}/trainer-container"
"""Name of the pod's container that trains: admission webhooks may put side cars before it."""

ANNOTATION_RESTART_REQUESTED = f"{GROUP}/restart-requested"
"""On a job: any new value has its pods start anew."""

MANAGED_BY = {"app.kubernetes.io/managed-by": "ddp-operator"}
"""Labels of objects that the operator creates and no job owns."""

OPERATOR_LABELS = {"app.kubernetes.io/name": "ddp-operator"}
"""By which a NetworkPolicy knows the operator's pods; `manifests/install` gives them these."""
NAMESPACE_NAME_LABEL = "kubernetes.io/metadata.name"
"""Every namespace has its name as this label."""

TRAINER_CONTAINER = "trainer"
"""The container of this name is the one that trains; `trainer_container` finds others."""
ANNOTATION_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
"""Names a pod's main container to kubectl: the one that trains, where none is named trainer."""

GPU_RESOURCE = "nvidia.com/gpu"
"""What GKE's nodes with GPUs offer."""

MAX_GPUS = 128
"""Accelerators, or shares of them, in one pod: as many as the cores of AWS' largest machine."""

# https://cloud.google.com/kubernetes-engine/docs/how-to/gpus and .../concepts/spot-vms
GKE_ACCELERATOR_LABEL = "cloud.google.com/gke-accelerator"
GKE_SPOT_LABEL = "cloud.google.com/gke-spot"
GKE_FLEX_START_LABEL = "cloud.google.com/gke-flex-start"
GKE_QUEUED_LABEL = "cloud.google.com/gke-queued"
GKE_MAX_RUN_LABEL = "cloud.google.com/gke-max-run-duration-seconds"
GKE_COMPUTE_CLASS_LABEL = "cloud.google.com/compute-class"
GKE_RESERVATION_PREFIX = "cloud.google.com/reservation-"
GKE_SHARING_LABEL = "cloud.google.com/gke-gpu-sharing-strategy"
GKE_PARTITION_LABEL = "cloud.google.com/gke-gpu-partition-size"
# https://cloud.google.com/kubernetes-engine/docs/how-to/gke-topology-aware-scheduling
GKE_TOPOLOGY_LABELS = {
    "block": "cloud.google.com/gce-topology-block",
    "sub-block": "cloud.google.com/gce-topology-subblock",
    "host": "cloud.google.com/gce-topology-host",
}
"""By which nodes say where they stand, from the widest to the closest."""
GKE_GCSFUSE_ANNOTATION = "gke-gcsfuse/volumes"
GKE_GCSFUSE_DRIVER = "gcsfuse.csi.storage.gke.io"

MAX_RUN_SECONDS = 120 * 24 * 3600
"""The longest that GKE lets a node be limited to."""
FLEX_START_SECONDS = (600, 7 * 24 * 3600)
"""Between which it lets one of flex-start's be."""

ARCHITECTURE_LABEL = "kubernetes.io/arch"
"""Of nodes; GKE has a taint of the same name on those that are not amd64."""

MAX_NAME_LENGTH = 50
"""A pod's host name, `<job>-<attempt>-<index>`, is one DNS label of at most 63 characters (RFC
1123); this leaves 13 for `-<attempt>-<index>`: eleven digits between them."""

MAX_REPLICAS = 10_000
MAX_SPARES = 100

DEFAULT_STATUS_PORT = 28737
"""Neither near 29500, from where people count on for stores of their own, nor a default of tools
that run in pods of trainings; below the ports of nodes (30000) and those of outgoing connections
(32768), and above those that Ray gives its workers (10002 to 19999)."""
ENV_STATUS_PORT = "DDP_STATUS_PORT"
"""Tells the trainer on which port it may serve its progress."""
ENV_POD_SIZES = "DDP_POD_SIZES"
"""Tells where pods have unequal numbers of processes how many each has: `4,2x3`."""
ENV_GENERATION = "DDP_GENERATION"
"""Tells of which generation of the job's group the rest of the environment speaks."""
ENV_POD = "DDP_POD"
"""Tells a pod its own name, which unlike its host name is another one after each replacement."""
ENV_HELD = "DDP_HELD"
"""Tells the launcher of a pod that comes to others to wait until it is told to start: `1`."""
ENV_HOLD_SECONDS = "DDP_HOLD_SECONDS"
"""Tells the launcher how long to wait, before it starts its ranks, for other places of them."""
ENV_MEMBERS = "DDP_MEMBERS"
"""Tells the launcher of node rank 0 the pods of the group, so that it may lead while no operator is
there: `0-2,5`, by the numbers in their names."""
ENV_SCOPE = "DDP_RESTART_SCOPE"
"""Tells the launcher what its job does about failures, where that is not for the operator alone:
`InPlace`."""
ENV_BATCH = "DDP_BATCH"
"""Tells the trainers of an elastic job whose share of samples stays when the group changes its
size: `global`, that of a step; `perRank`, that of a rank."""
ENV_BATCH_RANKS = "DDP_BATCH_RANKS"
"""Tells them how many ranks' batches are one step's: those of `spec.replicas`."""
ENV_LEAVE_SECONDS = "DDP_LEAVE_SECONDS"
"""Tells trainers how long one that is told to end trains on, for the operator to take it out of
the group before all save and stop; absent where it cannot."""
ENV_LOCAL_PATHS = "DDP_LOCAL_PATHS"
"""Tells the launcher which paths, joined by colons, each pod has for itself and may save to."""
ENV_TOKEN = "DDP_TOKEN"
"""Tells the trainer by what to know the operator, and the other pods of its job."""

LAUNCHER_PATH = "/ddp-launcher"
"""Where `launcher: inject` puts the launcher in pods: a folder that Python runs."""

ENV_NCCL_SCRIPT = "DDP_NCCL_ENV_SCRIPT"
"""Tells of a script of the node that sets NCCL's variables for its fabric, to be sourced before
ranks start."""

RESERVED_ENVIRONMENT = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "PET_NNODES",
    "PET_NPROC_PER_NODE",
    "PET_NODE_RANK",
    ENV_POD_SIZES,
    ENV_GENERATION,
    ENV_POD,
    ENV_HELD,
    ENV_HOLD_SECONDS,
    ENV_MEMBERS,
    ENV_SCOPE,
    ENV_BATCH,
    ENV_BATCH_RANKS,
    ENV_LEAVE_SECONDS,
    ENV_TOKEN,
)
"""Variables that only the operator can know; a user who sets one by hand would break the group."""

EXIT_CONFIGURATION = 64
"""EX_USAGE of sysexits.h: the trainer's word that starting it again cannot help."""
EXIT_PEER_LOST = 75
"""EX_TEMPFAIL of sysexits.h: the trainer lost another rank; a consequence, never the cause."""
EXIT_SIGKILL = 137
"""128 + SIGKILL: ended from outside and without a word, so that the end of its log tells of what it
had survived, such as a group that broke earlier."""
EXIT_SIGTERM = 143
"""128 + SIGTERM: told to stop, and stopped in order."""
