"""DDPJobs that must be refused, with the check that refuses them and its message.

The parser's tests and the tests with a real API server use this table. It has one manifest for each
rule, and a few for each kind of limit in the schema: `crds/ddpjobs.yaml` shows the limits.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from tests.good_manifests import Json, container, gpus, job, template

RefusedBy = Literal["schema", "cel", "pod"]
"""schema: refused by the API server, for types and bounds. cel: refused by the API server, by a
rule; the operator fails a job that is older than the rule, with reason InvalidSpec. pod: refused by
the API server when the operator creates the pods; reason InvalidPodTemplate."""


@dataclass(frozen=True)
class BadManifest:
    """One refusal."""

    name: str
    manifest: Json
    refused_by: RefusedBy
    says: str
    """Part of the message: the API server's for `schema` and `pod`, the rule's for `cel`."""
    operator_says: str = ""
    """For `schema`: part of the message of the operator's own parser, for people without
    a cluster."""


def _schema(name: str, says: str, operator_says: str, **spec: Any) -> BadManifest:
    return BadManifest(name, job(**spec), "schema", says, operator_says)


def _cel(name: str, says: str, *, job_name: str = "job", **spec: Any) -> BadManifest:
    return BadManifest(name, job(job_name, **spec), "cel", says, says)


def _pod(name: str, says: str, **spec: Any) -> BadManifest:
    return BadManifest(name, job(**spec), "pod", says)


def _without(remove: Callable[[Json], object]) -> Json:
    manifest = job()
    remove(manifest)
    return manifest


def _env(*names: str) -> list[Json]:
    return [{"name": name, "value": "0"} for name in names]


_RESTART = [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]
_GB300: Json = {"type": "nvidia-gb300", "count": 4, "network": "auto"}
_L4 = {"type": "nvidia-l4"}
_SHARED = {"cloud.google.com/gke-gpu-sharing-strategy": "time-sharing"}

BAD_MANIFESTS: tuple[BadManifest, ...] = (
    BadManifest(
        "no spec",
        _without(lambda manifest: manifest.pop("spec")),
        "schema",
        "spec: Required value",
        "spec.template: field required",
    ),
    BadManifest(
        "capital letter in the name",
        job("Job"),
        "schema",
        'metadata.name: Invalid value: "Job"',
        "metadata.name: at most 50 lower-case letters",
    ),
    _schema(
        "no replicas",
        "spec.replicas in body should be greater than or equal to 1",
        "spec.replicas: input should be greater than or equal to 1",
        replicas=0,
    ),
    _schema(
        "replicas in words",
        "spec.replicas in body must be of type integer",
        "spec.replicas: input should be a valid integer",
        replicas="two",
    ),
    _schema(
        "replicas in quotes",
        "spec.replicas in body must be of type integer",
        "spec.replicas: write 2 without quotes",
        replicas="2",
    ),
    _schema(
        "too many replicas",
        "spec.replicas in body should be less than or equal to 10000",
        "spec.replicas: input should be less than or equal to 10000",
        replicas=10_001,
    ),
    _schema(
        "no containers",
        "spec.template.spec.containers in body should have at least 1 items",
        "spec.template.spec.containers: list should have at least 1 item",
        template={"spec": {"containers": []}},
    ),
    _schema(
        "template without spec",
        "spec.template.spec: Required value",
        "spec.template.spec: field required",
        template={"metadata": {}},
    ),
    _schema(
        "container without name",
        "name: Required value",
        "spec.template.spec.containers[0].name: field required",
        template=template({"image": "x"}),
    ),
    _schema(
        "environment as a map",
        "env in body must be of type array",
        "spec.template.spec.containers[0].env: input should be a valid list",
        template=template(container(env={"A": "b"})),
    ),
    _schema(
        "label that is a number",
        "spec.template.metadata.labels.team in body must be of type string",
        "spec.template.metadata.labels.team: 7 is not text; use quotes",
        template={"metadata": {"labels": {"team": 7}}, **template()},
    ),
    _schema(
        "processes in words",
        "write a number without quotes, or auto",
        "spec.nprocPerNode: input should be 'auto'",
        nprocPerNode="all",
    ),
    _schema(
        "processes in quotes",
        "write a number without quotes, or auto",
        "spec.nprocPerNode: write 8 without quotes",
        nprocPerNode="8",
    ),
    _schema(
        "processes of an override in quotes",
        "write a number without quotes, or auto",
        "spec.overrides[0].nprocPerNode: write 2 without quotes",
        overrides=[{"indexes": ["0"], "nprocPerNode": "2"}],
    ),
    _schema(
        "a switch in quotes",
        "spec.suspend in body must be of type boolean",
        "spec.suspend: write true without quotes",
        suspend="true",
    ),
    _schema(
        "a variable that is a number",
        "value in body must be of type string",
        "spec.template.spec.containers[0].env[0].value: 0 is not text; use quotes",
        template=template(container(env=[{"name": "N", "value": 0}])),
    ),
    _schema(
        "a variable that is a truth",
        "value in body must be of type string",
        "spec.template.spec.containers[1].env[0].value: false is not text; use quotes",
        template=template(container(), container("logs", env=[{"name": "B", "value": False}])),
    ),
    _schema(
        "a number among the arguments",
        "args[1] in body must be of type string",
        "spec.template.spec.containers[0].args[1]: 0.1 is not text; use quotes",
        template=template(container(args=["--lr", 0.1])),
    ),
    _schema(
        "arguments as one text",
        "args in body must be of type array",
        "spec.template.spec.containers[0].args: is one text; write a list with one text for each",
        template=template(container(args="--lr 1")),
    ),
    _schema(
        "an image that is a number",
        "image in body must be of type string",
        "spec.template.spec.containers[0].image: 7 is not text; use quotes",
        template=template({"name": "trainer", "image": 7}),
    ),
    _schema(
        "unknown backend",
        'spec.backend: Unsupported value: "mpi"',
        "spec.backend: input should be 'auto', 'nccl' or 'gloo'",
        backend="mpi",
    ),
    _schema(
        "accelerator in capitals",
        "spec.accelerator.type in body should match",
        "spec.accelerator.type: string should match pattern",
        accelerator={"type": "NVIDIA L4"},
    ),
    _schema(
        "a reservation's name as a path",
        "spec.accelerator.reservation.name in body should match",
        "spec.accelerator.reservation.name: string should match pattern",
        accelerator={**_L4, "reservation": {"name": "projects/p/reservations/r"}},
    ),
    _schema(
        "an override of no pod",
        "indexes in body should have at least 1 items",
        "spec.overrides[0].indexes: list should have at least 1 item",
        overrides=[{"indexes": [], "nprocPerNode": 2}],
    ),
    _schema(
        "an override of pods in words",
        "in body should match '^[0-9]{1,5}(-[0-9]{1,5})?$'",
        "spec.overrides[0].indexes[0]: string should match pattern",
        overrides=[{"indexes": ["last"], "nprocPerNode": 2}],
    ),
    _schema(
        "relative checkpoint path",
        "spec.checkpoint.path in body should match",
        "spec.checkpoint.path: string should match pattern",
        checkpoint={"path": "checkpoints"},
    ),
    _schema(
        "bucket as a URL",
        "spec.checkpoint.gcsBucket in body should match",
        "spec.checkpoint.gcsBucket: string should match pattern",
        checkpoint={"gcsBucket": "gs://bucket"},
    ),
    _schema(
        "claim that no object can be named",
        "spec.checkpoint.persistentVolumeClaim in body should match",
        "spec.checkpoint.persistentVolumeClaim: string should match pattern",
        checkpoint={"persistentVolumeClaim": "My Claim"},
    ),
    _schema(
        "a queue's name with a blank",
        "spec.scheduling.queueName in body should match",
        "spec.scheduling.queueName: string should match pattern",
        scheduling={"queueName": "team a"},
    ),
    _schema(
        "affinity that is no list",
        "requiredDuringSchedulingIgnoredDuringExecution: Invalid value",
        "requiredDuringSchedulingIgnoredDuringExecution: input should be a valid list",
        template=template(
            affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}
        ),
    ),
    _schema(
        "unknown restart action",
        'action: Unsupported value: "Retry"',  # servers differ in how they name the rule
        "spec.restart.rules[0].action: input should be 'RestartPod'",
        restart={"rules": [{"exitCodes": [3], "action": "Retry"}]},
    ),
    _schema(
        "a rule for exit code 0",
        "in body should be greater than or equal to 1",
        "spec.restart.rules[0].exitCodes[0]: input should be greater than or equal to 1",
        restart={"rules": [{"exitCodes": [0], "action": "FailJob"}]},
    ),
    _schema(
        "host network in words",
        "spec.template.spec.hostNetwork in body must be of type boolean",
        "spec.template.spec.hostNetwork: input should be a valid boolean",
        template=template(hostNetwork="yes"),
    ),
    _cel(
        "the operator's account",
        "spec.template.spec.serviceAccountName: ddp-operator is the operator's own account",
        template=template(serviceAccountName="ddp-operator"),
    ),
    _cel(
        "the operator's account by its old field",
        "spec.template.spec.serviceAccountName: ddp-operator is the operator's own account",
        template=template(serviceAccount="ddp-operator"),
    ),
    _cel(
        "tokens of jobs as a volume",
        "spec.template.spec: names a Secret that starts with ddp-operator-tokens",
        template=template(
            volumes=[{"name": "a", "secret": {"secretName": "ddp-operator-tokens-0123456789"}}]
        ),
    ),
    _cel(
        "one port for two",
        "spec.statusPort: must differ from spec.masterPort",
        statusPort=29500,
    ),
    _cel(
        "left alone on the nodes' network",
        "spec.isolation: a NetworkPolicy does not affect pods with hostNetwork",
        isolation="Job",
        template=template(hostNetwork=True),
    ),
    _cel(
        "backoff that shrinks",
        "spec.restart.backoff: maxSeconds is less than initialSeconds",
        restart={"backoff": {"initialSeconds": 60, "maxSeconds": 30}},
    ),
    _cel(
        "a rule that matches all",
        "spec.restart.rules: a rule has no matcher",
        restart={"rules": [{"action": "FailJob"}]},
    ),
    _cel(
        "a log pattern without a step",
        "spec.progress.logPattern: name the group that holds the step",
        progress={"logPattern": r"loss (?P<loss>\S+)"},
    ),
    _cel(
        "a charged failure of the job",
        "spec.restart.rules: charged needs the action RestartPod or RestartGang",
        restart={"rules": [{"exitCodes": [3], "action": "FailJob", "charged": True}]},
    ),
    _cel("long name", "metadata.name: at most 50", job_name="a" * 51),
    _cel("name that begins with a digit", "metadata.name: at most 50", job_name="7b-model"),
    _cel("name with a dot", "metadata.name: at most 50", job_name="model.v1"),
    _cel(
        "restart policy",
        "spec.template.spec.restartPolicy: remove it or set it to Never",
        template=template(restartPolicy="OnFailure"),
    ),
    *(
        _cel(
            f"restart policy {policy} of {name}",
            "spec.template.spec.containers: remove restartPolicy or set it to Never",
            template=template(*containers),
        )
        for policy in ("Always", "OnFailure")
        for name, containers in (
            ("the trainer", [container(restartPolicy=policy)]),
            ("a side car", [container(), container("logs", restartPolicy=policy)]),
        )
    ),
    *(
        _cel(
            f"restart policy rules of {name}",
            "spec.template.spec: remove restartPolicyRules from all containers and initContai",
            template=template(*containers, **more),
        )
        for name, containers, more in (
            ("the trainer", [container(restartPolicy="Never", restartPolicyRules=_RESTART)], {}),
            ("a side car", [container(), container("logs", restartPolicyRules=_RESTART)], {}),
            ("nothing", [container(restartPolicyRules=[])], {}),
            (
                "an init container",
                [container()],
                {"initContainers": [container("first", restartPolicyRules=_RESTART)]},
            ),
        )
    ),
    _cel(
        "host name",
        "spec.template.spec: remove hostname and subdomain",
        template=template(hostname="mine"),
    ),
    _cel(
        "subdomain",
        "spec.template.spec: remove hostname and subdomain",
        template=template(subdomain="mine"),
    ),
    _cel(
        "rank by hand",
        "remove the variables that only the operator can set from the trainer's env",
        template=template(container(env=_env("A", "RANK"))),
    ),
    _cel(
        "world size by hand, behind a side car",
        "remove the variables that only the operator can set from the trainer's env",
        template=template(container("logs"), container(env=_env("WORLD_SIZE"))),
    ),
    _cel(
        "torchrun's node rank by hand, first container",
        "remove the variables that only the operator can set from the trainer's env",
        template=template(container("main", env=_env("PET_NODE_RANK"))),
    ),
    _cel(
        "token by hand",
        "remove the variables that only the operator can set from the trainer's env",
        template=template(container(env=_env("DDP_TOKEN"))),
    ),
    _cel(
        "a part of a GPU",
        "write the trainer's GPU limits as whole numbers",
        template=template(container(resources=gpus(gpu="500m"))),
    ),
    _cel(
        "a negative number of slices",
        "write the trainer's GPU limits as whole numbers",
        template=template(container(resources=gpus(mig=-1))),
    ),
    _cel(
        "more processes than the GPU limit",
        "spec.nprocPerNode: more processes than the trainer container's nvidia.com/gpu limit",
        nprocPerNode=4,
        template=template(container(resources=gpus(gpu="2"))),
    ),
    _cel(
        "more processes than the accelerator's count",
        "spec.nprocPerNode: more processes than spec.accelerator.count",
        nprocPerNode=2,
        accelerator=_L4,
    ),
    _cel(
        "GPUs of a side car, and kubectl's default container is another",
        "another container has the accelerators; give the container that trains the name trainer",
        template={
            "metadata": {"annotations": {"kubectl.kubernetes.io/default-container": "logs"}},
            **template(container("logs"), container("main", resources=gpus(gpu=8))),
        },
    ),
    _cel(
        "GPUs of two containers, neither of them first",
        "another container has the accelerators; give the container that trains the name trainer",
        template=template(
            container("logs"),
            container("main", resources={"limits": {"amd.com/gpu": 8}}),
            container("eval", resources={"limits": {"amd.com/gpu": "1"}}),
        ),
    ),
    _cel(
        "a part of an accelerator that is not NVIDIA's",
        "write the trainer's GPU limits as whole numbers",
        template=template(container(resources={"limits": {"habana.ai/gaudi": "0.5"}})),
    ),
    _cel(
        "nccl without GPUs",
        "spec.backend: nccl needs GPUs",
        backend="nccl",
        template=template(container(), container("viz", resources=gpus(gpu=1))),
    ),
    _cel(
        "two GPU counts",
        "spec.accelerator.count: differs from the trainer container's nvidia.com/gpu limit",
        accelerator={**_L4, "count": 4},
        template=template(container(resources=gpus(gpu=2))),
    ),
    _cel(
        "GPU count beside MIG slices",
        "spec.accelerator.count: differs from the trainer container's nvidia.com/gpu limit",
        accelerator={**_L4, "count": 4},
        template=template(container(resources=gpus(mig=4))),
    ),
    _cel(
        "accelerator selected twice",
        "spec.template.spec.nodeSelector: remove cloud.google.com/gke-accelerator",
        accelerator=_L4,
        template=template(nodeSelector={"cloud.google.com/gke-accelerator": "nvidia-t4"}),
    ),
    _cel(
        "accelerator without type",
        "spec.accelerator: names no machines",
        accelerator={"count": 1},
    ),
    _cel(
        "a compute class with a type",
        "spec.accelerator.computeClass: chooses the machines and how they are bought",
        accelerator={**_L4, "computeClass": "gpus"},
    ),
    _cel(
        "a compute class on spot",
        "spec.accelerator.computeClass: chooses the machines and how they are bought",
        accelerator={"computeClass": "gpus", "provisioning": "spot"},
    ),
    _cel(
        "the network of a compute class",
        "spec.accelerator.network: machines of this type do not have this network",
        accelerator={"computeClass": "gpus", "count": 8, "network": "auto"},
    ),
    _cel(
        "queued, but in no queue",
        "spec.accelerator.provisioning: queued needs a Kueue queue",
        accelerator={**_L4, "provisioning": "queued"},
    ),
    _cel(
        "queued, but in a queue of KAI's",
        "spec.accelerator.provisioning: queued needs a Kueue queue",
        accelerator={**_L4, "provisioning": "queued"},
        scheduling={"gang": "kai", "queueName": "team-a"},
    ),
    _cel(
        "nodes of flex-start for more than a week",
        "spec.accelerator.maxRunSeconds: flex-start and queued nodes",
        accelerator={**_L4, "provisioning": "flex-start", "maxRunSeconds": 604_801},
    ),
    _cel(
        "queued nodes for less than ten minutes",
        "spec.accelerator.maxRunSeconds: flex-start and queued nodes",
        accelerator={**_L4, "provisioning": "queued", "maxRunSeconds": 599},
        scheduling={"queueName": "team-a"},
    ),
    _cel(
        "a reservation that is not used",
        "spec.accelerator.reservation: needs provisioning: reservation",
        accelerator={**_L4, "reservation": {"name": "ours"}},
    ),
    _cel(
        "reserved, but where",
        "spec.accelerator.reservation: needs provisioning: reservation",
        accelerator={**_L4, "provisioning": "reservation"},
    ),
    _cel(
        "a sub-block of no block",
        "spec.accelerator.reservation.subBlocks: needs the block that it is in",
        accelerator={
            **_L4,
            "provisioning": "reservation",
            "reservation": {"name": "ours", "subBlocks": "ours-block-1-subblock-2"},
        },
    ),
    _cel(
        "more GPUs than a machine has",
        "spec.accelerator.count: no machine of spec.accelerator.type has so many GPUs",
        accelerator={"type": "nvidia-gb200", "count": 8},
    ),
    _cel(
        "a limit of more GPUs than a machine has",
        "spec.accelerator.count: no machine of spec.accelerator.type has so many GPUs",
        accelerator=_L4,
        template=template(container(resources=gpus(gpu=16))),
    ),
    _cel(
        "parts of GPUs that cannot be divided",
        "spec.accelerator: GPUs of its type cannot be divided",
        accelerator=_L4,
        template=template(nodeSelector={"cloud.google.com/gke-gpu-partition-size": "1g.5gb"}),
    ),
    _cel(
        "two GPUs that are shared by time",
        "spec.accelerator: on shared GPUs",
        accelerator={**_L4, "count": 2},
        template=template(nodeSelector=_SHARED),
    ),
    _cel(
        "two processes on a GPU that is shared by time",
        "spec.accelerator: on shared GPUs",
        nprocPerNode=2,
        backend="gloo",
        accelerator=_L4,
        template=template(nodeSelector=_SHARED),
    ),
    _cel(
        "arm machines with another processor",
        "spec.accelerator: the machines of its type have another processor",
        accelerator={"type": "nvidia-gb200", "count": 4},
        template=template(nodeSelector={"kubernetes.io/arch": "amd64"}),
    ),
    _cel(
        "another machine with an arm processor",
        "spec.accelerator: the machines of its type have another processor",
        accelerator=_L4,
        template=template(nodeSelector={"kubernetes.io/arch": "arm64"}),
    ),
    _cel(
        "more pods than nodes of an NVLink domain",
        "spec.accelerator.network: all pods must fit into one NVLink domain",
        replicas=19,
        accelerator=_GB300,
    ),
    _cel(
        "more pods and spares than nodes of an NVLink domain",
        "spec.accelerator.network: all pods must fit into one NVLink domain",
        replicas=17,
        spares=2,
        restart={"scope": "InPlace"},
        accelerator=_GB300,
    ),
    _cel(
        "an elastic job that outgrows an NVLink domain",
        "spec.accelerator.network: all pods must fit into one NVLink domain",
        replicas=2,
        elastic={"maxReplicas": 19},
        accelerator=_GB300,
    ),
    _cel(
        "a pod outside the NVLink domain of its job",
        "spec.overrides: with an NVLink domain all pods are in it",
        replicas=2,
        accelerator=_GB300,
        overrides=[{"indexes": ["1"], "accelerator": {**_GB300, "network": "none"}}],
    ),
    _cel(
        "a pod with an NVLink domain of its own",
        "spec.overrides: with an NVLink domain all pods are in it",
        replicas=2,
        accelerator={**_GB300, "network": "none"},
        overrides=[{"indexes": ["1"], "accelerator": _GB300}],
    ),
    _cel(
        "a pod on other machines with NVLink domains",
        "spec.overrides: with an NVLink domain all pods are in it",
        replicas=2,
        accelerator=_GB300,
        overrides=[{"indexes": ["1"], "accelerator": {**_GB300, "type": "nvidia-gb200"}}],
    ),
    _cel(
        "multi-networking on machines with an NVLink domain",
        "spec.accelerator.network: machines of this type do not have this network",
        accelerator={**_GB300, "network": "rdma"},
    ),
    _cel(
        "a fabric that its machines have not",
        "spec.accelerator.network: machines of this type do not have this network",
        accelerator={"type": "nvidia-b200", "count": 8, "network": "tcpx"},
    ),
    _cel(
        "a fabric of machines that have none",
        "spec.accelerator.network: machines of this type do not have this network",
        accelerator={**_L4, "count": 8, "network": "auto"},
    ),
    _cel(
        "the fabric of machines that nobody knows",
        "spec.accelerator.network: machines of this type do not have this network",
        accelerator={"type": "nvidia-of-tomorrow", "count": 8, "network": "auto"},
    ),
    _cel(
        "a fabric for half a machine",
        "spec.accelerator.network: a GPU network needs whole machines",
        accelerator={"type": "nvidia-h100-80gb", "count": 4, "network": "tcpx"},
    ),
    _cel(
        "a fabric without nccl",
        "spec.accelerator.network: a GPU network works with nccl only",
        backend="gloo",
        accelerator={"type": "nvidia-b200", "count": 8, "network": "auto"},
    ),
    _cel(
        "a fabric for the nodes' own network",
        "spec.accelerator.network: a GPU network gives pods their own network cards",
        accelerator={"type": "nvidia-b200", "count": 8, "network": "auto"},
        template=template(hostNetwork=True),
    ),
    _cel(
        "an override of a pod that is none",
        "spec.overrides: indexes without pods",
        replicas=3,
        overrides=[{"indexes": ["0", "2-3"], "nprocPerNode": 2}],
    ),
    _cel(
        "an override of a range that ends before it begins",
        "spec.overrides: indexes without pods",
        replicas=3,
        overrides=[{"indexes": ["2-1"], "nprocPerNode": 2}],
    ),
    _cel(
        "two overrides of one pod",
        "spec.overrides: an index appears twice",
        replicas=9,
        overrides=[
            {"indexes": ["2-5"], "nprocPerNode": 2},
            {"indexes": ["0", "4"], "nprocPerNode": 3},
        ],
    ),
    _cel(
        "a pod twice in one override",
        "spec.overrides: an index appears twice",
        replicas=9,
        overrides=[{"indexes": ["4-6", "1", "4"], "nprocPerNode": 2}],
    ),
    _cel(
        "an override of nothing",
        "spec.overrides: an override changes nothing",
        overrides=[{"indexes": ["0"]}],
    ),
    _cel(
        "a replacement in a queue before the old pod has ended",
        "spec.restart.replaceWhen: Kueue deletes a pod that replaces one which still ends",
        restart={"replaceWhen": "Terminating"},
        scheduling={"queueName": "team-a"},
    ),
    _cel(
        "spares of another priority in a queue",
        "spec.sparesPriorityClassName: Kueue gives all pods of a job one priority",
        spares=1,
        sparesPriorityClassName="low",
        scheduling={"queueName": "team-a"},
    ),
    _cel(
        "more kinds of pods than a queue admits",
        "spec.overrides: Kueue admits at most 8 kinds of pods",
        replicas=9,
        scheduling={"queueName": "team-a"},
        overrides=[{"indexes": [str(index)], "nprocPerNode": 2} for index in range(8)],
    ),
    _cel(
        "a queue in two places",
        "spec.template.metadata.labels: remove Kueue's queue-name",
        scheduling={"queueName": "team-a"},
        template={"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "team-b"}}, **template()},
    ),
    _cel(
        "near in two places",
        "spec.template.metadata.annotations: remove Kueue's podset-*-topology",
        scheduling={"queueName": "team-a", "topology": {"level": "block"}},
        template={
            "metadata": {"annotations": {"kueue.x-k8s.io/podset-required-topology": "rack"}},
            **template(),
        },
    ),
    _cel(
        "nothing for the launcher to start",
        "spec.launcher: inject must know what to start",
        launcher="inject",
        template=template(container(args=["--epochs=1"])),
    ),
    _cel(
        "an empty command for the launcher to start",
        "spec.launcher: inject must know what to start",
        launcher="inject",
        template=template(container(command=[])),
    ),
    _cel(
        "torchrun below the launcher",
        "remove torchrun or ddp_trainer.launch from it (python train.py)",
        launcher="inject",
        template=template(container("logs"), container(command=["torchrun", "train.py"])),
    ),
    _cel(
        "another project's launcher below the launcher",
        "remove torchrun or ddp_trainer.launch from it (python train.py)",
        launcher="inject",
        template=template(container(command=["accelerate", "launch", "train.py"])),
    ),
    _cel(
        "a launcher below the launcher",
        "remove torchrun or ddp_trainer.launch from it (python train.py)",
        launcher="inject",
        template=template(container(command=["python", "-m", "ddp_trainer.launch", "--", "a"])),
    ),
    _cel(
        "torchrun of one pod in two",
        "spec.replicas: the trainer container's command asks for another number of pods",
        replicas=2,
        template=template(container(command=["torchrun", "--nnodes=1", "train.py"])),
    ),
    _cel(
        "torchrun alone in each of two pods",
        "spec.replicas: the trainer container's command asks for another number of pods",
        replicas=2,
        template=template(container(command=["torchrun"], args=["--standalone", "train.py"])),
    ),
    _cel(
        "torchrun of four pods in two",
        "spec.replicas: the trainer container's command asks for another number of pods",
        replicas=2,
        template=template(
            container(
                command=["python", "-m", "torch.distributed.run", "--nproc_per_node", "1"],
                args=["--nnodes", "4", "train.py"],
            )
        ),
    ),
    _cel(
        "one node rank for all pods",
        "gives all pods the rank or address of one",
        replicas=2,
        template=template(
            container(command=["torchrun", "--nnodes=2", "--node_rank=0", "train.py"])
        ),
    ),
    _cel(
        "each pod as its own master",
        "gives all pods the rank or address of one",
        replicas=2,
        template=template(
            container(command=["torchrun", "--master_addr", "localhost", "train.py"])
        ),
    ),
    _cel(
        "torchrun with other processes than the field",
        "spec.nprocPerNode: the trainer container's command starts another number",
        nprocPerNode=2,
        template=template(container(command=["torchrun", "--nproc_per_node=4", "train.py"])),
    ),
    _cel(
        "torchrun with more processes than GPUs",
        "spec.nprocPerNode: the trainer container's command starts another number",
        template=template(
            container(command=["torchrun", "--nproc-per-node=8", "train.py"], resources=gpus(gpu=4))
        ),
    ),
    _cel(
        "a shell's variable without a shell",
        "write $(NAME), which Kubernetes replaces",
        replicas=2,
        template=template(container(command=["torchrun", "--node_rank=$RANK", "train.py"])),
    ),
    _cel(
        "a shell's line without quotes",
        "a shell runs only the word after -c",
        template=template(container(command=["bash", "-c", "python", "train.py"])),
    ),
    _cel(
        "two places for checkpoints",
        "spec.checkpoint: name at most one of persistentVolumeClaim, gcsBucket and hostPath",
        checkpoint={"hostPath": "/mnt", "gcsBucket": "bucket"},
    ),
    _pod(
        "no image",
        "spec.containers[0].image: Required value",
        template=template({"name": "trainer"}),
    ),
    _pod(
        "label with blanks",
        'metadata.labels: Invalid value: "two words"',
        template={"metadata": {"labels": {"team": "two words"}}, **template()},
    ),
    _pod(
        "mount of nothing",
        'volumeMounts[0].name: Not found: "data"',
        template=template(container(volumeMounts=[{"name": "data", "mountPath": "/data"}])),
    ),
    _pod(
        "two containers of one name",
        'spec.containers[1].name: Duplicate value: "a"',
        template=template(container("a"), container("a")),
    ),
    _cel(
        "more pods than a job may have, with its spares",
        "spec.spares: with replicas this is more than 10000 pods",
        replicas=9_999,
        spares=2,
        restart={"scope": "Pod"},
    ),
    _cel(
        "spares of unequal pods",
        "spec.spares: any pod may take another one's place",
        replicas=2,
        spares=1,
        restart={"scope": "Pod"},
        overrides=[{"indexes": ["1"], "nprocPerNode": 2}],
    ),
    _cel(
        "spares in a gang",
        "spec.spares: a gang scheduler may place a spare before",
        spares=1,
        restart={"scope": "InPlace"},
        scheduling={"gang": "coscheduling"},
    ),
    _cel(
        "spares in a gang of KAI's, in a queue of KAI's",
        "spec.spares: a gang scheduler may place a spare before",
        spares=1,
        restart={"scope": "Pod"},
        scheduling={"queueName": "research", "gang": "kai"},
    ),
    _cel(
        "spares in a gang, in a queue",
        "spec.spares: a gang scheduler may place a spare before",
        spares=1,
        scheduling={"queueName": "research", "gang": "native"},
    ),
    _cel(
        "a priority of no spares",
        "spec.sparesPriorityClassName: the job has no spares",
        sparesPriorityClassName="low",
    ),
    _cel(
        "spares that nothing would use",
        "spec.spares: with restart.scope Gang all pods restart",
        spares=1,
        restart={"scope": "Gang"},
    ),
    _cel(
        "elastic with more at least than replicas",
        "spec.elastic.minReplicas: more than spec.replicas",
        replicas=2,
        restart={"scope": "Auto"},
        elastic={"minReplicas": 3},
    ),
    _cel(
        "elastic with fewer at most than replicas",
        "spec.elastic.maxReplicas: fewer than spec.replicas",
        replicas=4,
        restart={"scope": "Auto"},
        elastic={"maxReplicas": 3},
    ),
    _cel(
        "elastic up to more pods than a job may have, with its spares",
        "spec.elastic.maxReplicas: with spares this is more than 10000 pods",
        spares=2,
        restart={"scope": "Pod"},
        elastic={"maxReplicas": 9_999},
    ),
    _cel(
        "elastic with unequal pods",
        "spec.elastic: pods move to other pods' places",
        replicas=2,
        restart={"scope": "Auto"},
        elastic={},
        overrides=[{"indexes": ["1"], "nprocPerNode": 2}],
    ),
    _cel(
        "elastic in scope Gang",
        "spec.elastic: with restart.scope Gang all pods restart",
        restart={"scope": "Gang"},
        elastic={"minReplicas": 1},
    ),
    _schema(
        "a slow rank that is faster than the others",
        "spec.restart.slowRank.factor in body should be greater than or equal to 1",
        "spec.restart.slowRank.factor: input should be greater than or equal to 1",
        replicas=2,
        restart={"slowRank": {"factor": 0.5}},
    ),
    _cel(
        "a slow rank that is as fast as the others",
        "spec.restart.slowRank.factor: must be more than 1",
        replicas=2,
        restart={"slowRank": {"factor": 1}},
    ),
    _schema(
        "a slow rank for no time",
        "spec.restart.slowRank.forSeconds in body should be greater than or equal to 1",
        "spec.restart.slowRank.forSeconds: input should be greater than or equal to 1",
        replicas=2,
        restart={"slowRank": {"forSeconds": 0}},
    ),
    _cel(
        "a slow rank that is replaced in scope Gang",
        "spec.restart.slowRank.action: with restart.scope Gang",
        replicas=2,
        restart={"scope": "Gang", "slowRank": {"action": "Replace"}},
    ),
    _cel(
        "a slow rank of one pod",
        "spec.restart.slowRank: a rank is compared with others",
        restart={"slowRank": {}},
    ),
    _cel(
        "a slow rank of a trainer that only logs",
        "spec.restart.slowRank: a log that spec.progress.logPattern reads",
        replicas=2,
        progress={"logPattern": r"step (?P<step>\d+)"},
        restart={"slowRank": {}},
    ),
    _schema(
        "memory checkpoints of a size in words",
        "spec.memoryCheckpoint.sizeLimit in body should match",
        "spec.memoryCheckpoint.sizeLimit: string should match pattern",
        memoryCheckpoint={"sizeLimit": "16 GB", "copies": 0},
    ),
    _schema(
        "memory checkpoints of a size without quotes",
        "spec.memoryCheckpoint.sizeLimit in body must be of type string",
        "spec.memoryCheckpoint.sizeLimit: 17179869184 is not text; use quotes",
        memoryCheckpoint={"sizeLimit": 17_179_869_184, "copies": 0},
    ),
    _cel(
        "memory checkpoints in too little memory",
        "spec.memoryCheckpoint.sizeLimit: less than 16Mi",
        memoryCheckpoint={"sizeLimit": "16M", "copies": 0},
    ),
    _cel(
        "memory checkpoints in all memory of a pod",
        "spec.memoryCheckpoint.sizeLimit: must be less than",
        memoryCheckpoint={"sizeLimit": "1Gi", "copies": 0},
        template=template(container(resources=gpus(memory="1024Mi"))),
    ),
    _cel(
        "memory checkpoints in more memory than a pod has, as a number",
        "spec.memoryCheckpoint.sizeLimit: must be less than",
        memoryCheckpoint={"sizeLimit": "1Gi", "copies": 0},
        template=template(container(resources=gpus(memory=1_000_000_000))),
    ),
    _cel(
        "a copy in another pod of one pod",
        "spec.memoryCheckpoint.copies: other pods keep them",
        memoryCheckpoint={"sizeLimit": "1Gi"},
    ),
    _cel(
        "as many copies as pods at least",
        "spec.memoryCheckpoint.copies: other pods keep them",
        replicas=8,
        elastic={"minReplicas": 2},
        memoryCheckpoint={"sizeLimit": "1Gi", "copies": 2},
    ),
    _cel(
        "memory checkpoints in pods that all restart",
        "spec.memoryCheckpoint: needs restart.scope Auto or InPlace",
        replicas=2,
        restart={"scope": "Gang"},
        memoryCheckpoint={"sizeLimit": "1Gi"},
    ),
    _cel(
        "memory checkpoints of processes that form the group again",
        "spec.memoryCheckpoint: needs restart.scope Auto or InPlace",
        replicas=2,
        restart={"scope": "Pod"},
        memoryCheckpoint={"sizeLimit": "1Gi"},
    ),
    _cel(
        "another volume where the memory checkpoints are",
        "spec.template.spec.containers: remove the trainer's volumeMounts in /ddp-memory",
        replicas=2,
        memoryCheckpoint={"sizeLimit": "1Gi"},
        template=template(
            container(volumeMounts=[{"name": "mine", "mountPath": "/ddp-memory/mine"}]),
            volumes=[{"name": "mine", "emptyDir": {}}],
        ),
    ),
    _pod(
        "a volume with the name of that for memory checkpoints",
        "spec.volumes",
        replicas=2,
        memoryCheckpoint={"sizeLimit": "1Gi"},
        template=template(volumes=[{"name": "ddp-memory", "emptyDir": {}}]),
    ),
    _cel(
        "memory checkpoints of a variable",
        "spec.template.spec.containers: remove the variables that only the operator can set",
        template=template(container(env=_env("DDP_MEMORY_DIR"))),
    ),
    _schema(
        "a controller without a domain",
        "spec.managedBy in body should match",
        "spec.managedBy: string should match pattern",
        managedBy="multikueue",
    ),
    _cel(
        "MultiKueue without a queue",
        "spec.managedBy: MultiKueue runs only jobs in Kueue's queues",
        managedBy="kueue.x-k8s.io/multikueue",
    ),
    _cel(
        "MultiKueue with KAI's queue",
        "spec.managedBy: MultiKueue runs only jobs in Kueue's queues",
        managedBy="kueue.x-k8s.io/multikueue",
        scheduling={"queueName": "research", "gang": "kai"},
    ),
    _pod(
        "quantity in words",
        "quantities must match the regular expression",
        template=template(container(resources=gpus(memory="lots"))),
    ),
    _pod(
        "something else where the checkpoints are mounted",
        'mountPath: Invalid value: "/checkpoints": must be unique',
        checkpoint={"hostPath": "/mnt"},
        template=template(
            container(volumeMounts=[{"name": "mine", "mountPath": "/checkpoints"}]),
            volumes=[{"name": "mine", "emptyDir": {}}],
        ),
    ),
    _pod(
        "a volume with the name of the launcher's",
        'spec.volumes[3].name: Duplicate value: "ddp-launcher"',
        launcher="inject",
        template=template(
            container(command=["./train"]), volumes=[{"name": "ddp-launcher", "emptyDir": {}}]
        ),
    ),
    _pod(
        "unknown toleration",
        'Unsupported value: "Sometimes"',
        template=template(tolerations=[{"key": "k", "operator": "Sometimes", "value": "v"}]),
    ),
)
