"""Names by which the API server and other tools know this operator's objects."""

GROUP = "ddp-operator.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "DDPJob"
PLURAL = "ddpjobs"
SINGULAR = "ddpjob"
SHORT_NAME = "ddp"

OWN_PREFIX = f"{GROUP}/"
"""Prefix of all labels and annotations that the operator reads. On pods, only the operator sets
them."""

LABEL_JOB_NAME = f"{GROUP}/job-name"
LABEL_JOB_UID = f"{GROUP}/job-uid"
LABEL_INDEX = f"{GROUP}/replica-index"
LABEL_ATTEMPT = f"{GROUP}/attempt"
LABEL_REPLACEMENT = f"{GROUP}/replacement"
LABEL_SERVING = f"{GROUP}/serving"
"""`true` on pods that the job's Service lists in DNS; absent on a pod that was fenced out."""
LABEL_TOKEN_KEY = f"{GROUP}/token-key"
"""Name of the operator's key from which the pod's token is derived."""
ANNOTATION_SPEC_HASH = f"{GROUP}/spec-hash"
ANNOTATION_GENERATION = f"{GROUP}/generation"
"""Generation of the job's group when the pod was created."""
ANNOTATION_TRAINER = f"{GROUP}/trainer-container"
"""Name of the container that trains: admission webhooks may insert sidecars before it."""

ANNOTATION_RESTART_REQUESTED = f"{GROUP}/restart-requested"
"""On a job: any new value restarts its pods."""
ANNOTATION_CODE = f"{GROUP}/code"
"""On a job: the code that a client sent, as `code.Code`; new code restarts the processes. On a pod:
the ID of the code that it was created with."""

CONTROLLER = f"{GROUP}/ddpjob-controller"
"""This operator as the value of `spec.managedBy`."""
MULTIKUEUE = "kueue.x-k8s.io/multikueue"
"""Kueue's MultiKueue as the value of `spec.managedBy`: it runs the job in another cluster."""

PREBUILT_WORKLOAD = "kueue.x-k8s.io/prebuilt-workload-name"
"""Annotation that MultiKueue sets on a job that it has copied to this cluster: the Workload that it
copied. Kueue before 0.18 sets a label instead. Authors of jobs may set either, too."""
LABEL_MULTIKUEUE_ORIGIN = "kueue.x-k8s.io/multikueue-origin"
"""Set by MultiKueue on a Workload that it has copied to this cluster."""
ANNOTATION_WORKLOAD_OF = f"{GROUP}/workload-of"
"""On a Workload that MultiKueue copies to other clusters: the name of its job."""
ANNOTATION_SUSPEND = f"{GROUP}/suspend"
"""On such a Workload: its job's `suspend` when the operator last wrote the Workload's `active`."""
ANNOTATION_EARLIER_FAILURES = f"{GROUP}/earlier-failures"
"""On such a Workload: failures of its job, as JSON, for its copy in the next cluster."""

MANAGED_BY = {"app.kubernetes.io/managed-by": "ddp-operator"}
"""Labels by which users find the Secrets that the operator creates."""

OPERATOR_LABELS = {f"{GROUP}/component": "operator"}
"""Labels by which everything selects the operator's pods; `manifests/install` sets them. The own
prefix keeps them off pods of jobs, whose authors choose other labels freely."""
OPERATOR_NAMESPACE = "ddp-operator"
"""Namespace of the operator in `manifests/install`."""
SERVICE_ACCOUNT = "ddp-operator"
"""The operator's own account in all manifests."""
TOKEN_SECRETS = "ddp-operator-tokens"
"""Start of the names of all Secrets with the operator's key or with tokens of jobs."""
NAMESPACE_NAME_LABEL = "kubernetes.io/metadata.name"
"""Every namespace has its name as this label."""

TRAINER_CONTAINER = "trainer"
"""Name of the container that trains; `trainer_container` finds containers with other names."""
ANNOTATION_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
"""Names a pod's main container to kubectl. It trains if no container is named trainer."""

GPU_RESOURCE = "nvidia.com/gpu"
"""Resource name of the GPUs of GKE's nodes."""

MAX_GPUS = 128
"""Accelerators, or shares of them, in one pod: as many as AWS' largest machine has cores."""

# https://cloud.google.com/kubernetes-engine/docs/how-to/gpus and .../concepts/spot-vms
GKE_ACCELERATOR_LABEL = "cloud.google.com/gke-accelerator"
GKE_SPOT_LABEL = "cloud.google.com/gke-spot"
GKE_FLEX_START_LABEL = "cloud.google.com/gke-flex-start"
GKE_QUEUED_LABEL = "cloud.google.com/gke-queued"
GKE_MAX_RUN_LABEL = "cloud.google.com/gke-max-run-duration-seconds"
GKE_COMPUTE_CLASS_LABEL = "cloud.google.com/compute-class"
GKE_RESERVATION_PREFIX = "cloud.google.com/reservation-"
GKE_PROVISIONING_LABEL = "cloud.google.com/gke-provisioning"
GKE_NETWORK_PROFILE_LABEL = "gke.networks.io/accelerator-network-profile"
GKE_SHARING_LABEL = "cloud.google.com/gke-gpu-sharing-strategy"
GKE_PARTITION_LABEL = "cloud.google.com/gke-gpu-partition-size"
# https://cloud.google.com/kubernetes-engine/docs/how-to/gke-topology-aware-scheduling
GKE_TOPOLOGY_LABELS = {
    "block": "cloud.google.com/gce-topology-block",
    "sub-block": "cloud.google.com/gce-topology-subblock",
    "host": "cloud.google.com/gce-topology-host",
}
"""Node labels for the location of a node, from the widest to the closest."""
ZONE_LABEL = "topology.kubernetes.io/zone"
NVLINK_DOMAIN_LABEL = "nvidia.com/gpu.clique"
"""Node label of NVIDIA's GPU feature discovery: nodes whose GPUs share one NVLink fabric."""
GKE_GCSFUSE_ANNOTATION = "gke-gcsfuse/volumes"
GKE_GCSFUSE_DRIVER = "gcsfuse.csi.storage.gke.io"

MAX_RUN_SECONDS = 120 * 24 * 3600
"""Longest run time that GKE allows for a node."""
FLEX_START_SECONDS = (600, 7 * 24 * 3600)
"""Shortest and longest run time that GKE allows for a flex-start node."""

ARCHITECTURE_LABEL = "kubernetes.io/arch"
"""Label of a node's processor; GKE adds a taint of the same name to nodes that are not amd64."""

MAX_NAME_LENGTH = 50
"""A pod's host name, `<job>-<attempt>-<index>`, is one DNS label of at most 63 characters (RFC
1123). This leaves 13 for `-<attempt>-<index>`: eleven digits between them."""

MAX_REPLICAS = 10_000
MAX_SPARES = 100

DEFAULT_STATUS_PORT = 28737
"""Not near 29500, where people expect stores of their own, and not a default of tools that run in
training pods. Below the ports of nodes (30000) and of outgoing connections (32768), and above those
that Ray gives its workers (10002 to 19999)."""
ENV_STATUS_PORT = "DDP_STATUS_PORT"
"""Port on which the trainer may serve its progress."""
ENV_POD_SIZES = "DDP_POD_SIZES"
"""Number of processes of each pod, if the pods differ: `4,2x3`."""
ENV_GENERATION = "DDP_GENERATION"
"""Generation of the job's group that the rest of the environment describes."""
ENV_POD = "DDP_POD"
"""The pod's own name. Unlike its host name it is new after each replacement."""
ENV_HELD = "DDP_HELD"
"""`1`: the launcher of a pod that joins a running group waits for the order to start."""
ENV_HOLD_SECONDS = "DDP_HOLD_SECONDS"
"""How long the launcher waits for a new rank assignment before it starts its ranks."""
ENV_MEMBERS = "DDP_MEMBERS"
"""For the launcher of node rank 0: pods of the group, by the numbers in their names, such as
`0-2,5`. With them it can lead while no operator is available."""
ENV_SCOPE = "DDP_RESTART_SCOPE"
"""For the launcher: what the job does about failures, if the launcher may act: `InPlace`."""
ENV_BATCH = "DDP_BATCH"
"""For trainers of an elastic job: what stays the same when the group changes its size. `global`:
the samples of a step; `perRank`: those of a rank."""
ENV_BATCH_RANKS = "DDP_BATCH_RANKS"
"""For the same trainers: the number of ranks that share a step's batch, that is, of
`spec.replicas`."""
ENV_LEAVE_SECONDS = "DDP_LEAVE_SECONDS"
"""For trainers: how long a rank trains on after SIGTERM, so that the operator can take it out of
the group before all save and stop. Absent if the operator cannot."""
ENV_LOCAL_PATHS = "DDP_LOCAL_PATHS"
"""For the launcher: paths, joined by colons, that each pod has to itself and may save to."""
ENV_TOKEN = "DDP_TOKEN"
"""For the trainer: token that authenticates the operator and the other pods of its job."""
ENV_MEMORY_DIR = "DDP_MEMORY_DIR"
"""For `ddp_trainer.memory` and the launcher: the memory-backed volume for snapshots. Absent if the
job has no memory checkpoints."""
ENV_MEMORY_BYTES = "DDP_MEMORY_BYTES"
"""Size of that volume."""
ENV_MEMORY_COPIES = "DDP_MEMORY_COPIES"
"""How many other pods keep a copy of this pod's snapshots."""
ENV_CHECKPOINTS_IN_MEMORY = "DDP_CHECKPOINTS_IN_MEMORY"
"""A user sets it in the template: the folder, on each pod's own disk, with the checkpoints of DCP
that `spec.memoryCheckpoint` keeps, too."""
MEMORY_PATH = "/ddp-memory"
"""Where the volume for snapshots is mounted."""
MEMORY_VOLUME = "ddp-memory"
"""Name of that volume."""

KUEUE_MANAGED = "kueue.x-k8s.io/managed"
"""Kueue's label, and its finalizer, on pods that it manages."""
KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
"""Kueue's label for the LocalQueue of a pod, or of a job."""
KUEUE_GROUP = "kueue.x-k8s.io/pod-group-name"
"""Kueue's label for the group of a pod; from 0.18 on also an annotation."""
KUEUE_RETRIABLE = "kueue.x-k8s.io/retriable-in-group"
"""Kueue's annotation: `false` on one pod says that no pod of its group is replaced any more."""
KUEUE_BOOST = "kueue.x-k8s.io/priority-boost"
"""Kueue's annotation on a Workload: a number that is added to its priority."""

ENV_CODE_DIR = "DDP_CODE_DIR"
"""For the launcher: the folder with the code that a client sent. Absent if none did."""
LAUNCHER_PATH = "/ddp-launcher"
"""Where `launcher: inject` puts the launcher in pods: a folder that Python runs."""

ENV_NCCL_SCRIPT = "DDP_NCCL_ENV_SCRIPT"
"""A script of the node that sets NCCL's variables for its GPU network. Sourced before ranks
start."""

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
    ENV_MEMORY_DIR,
    ENV_MEMORY_BYTES,
    ENV_MEMORY_COPIES,
)
"""Variables that only the operator can set. A user who sets one would break the group."""

EXIT_CONFIGURATION = 64
"""EX_USAGE of sysexits.h: the trainer reports that a restart cannot help."""
EXIT_PEER_LOST = 75
"""EX_TEMPFAIL of sysexits.h: the trainer lost another rank. A consequence, never the cause."""
EXIT_SIGKILL = 137
"""128 + SIGKILL: ended from outside without a message. The end of its log then shows what it had
survived, such as a group that broke earlier."""
EXIT_SIGTERM = 143
"""128 + SIGTERM: told to stop, and stopped in order."""

RECURSION = 12_000
"""Recursion limit of a process that reads user input. Python's JSON reader counts each level, and
API servers read objects 10,000 levels deep (sigs.k8s.io/json). That takes 2 MB of the 8 MB of
stack."""
