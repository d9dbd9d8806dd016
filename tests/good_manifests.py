"""DDPJobs that every check must admit: schema, CEL rules, the operator's parser, and the API
server's check of their pods.
"""

from pathlib import Path
from typing import Any

import yaml
from ddp_operator.api.constants import API_VERSION, DEFAULT_STATUS_PORT, KIND, MAX_NAME_LENGTH

Json = dict[str, Any]


def container(name: str = "trainer", **fields: Any) -> Json:
    """Return a container with an image; `fields` are added unchanged."""
    return {"name": name, "image": "registry.example/trainer:1", **fields}


def gpus(**limits: int | str) -> Json:
    """Return resources with limits; underscores replace what keyword arguments cannot spell."""
    names = {"gpu": "nvidia.com/gpu", "mig": "nvidia.com/mig-1g.10gb"}
    return {"limits": {names.get(name, name): amount for name, amount in limits.items()}}


def template(*containers: Json, **pod_spec: Any) -> Json:
    """Return a pod template with these containers, or a plain one."""
    return {"spec": {"containers": list(containers or (container(),)), **pod_spec}}


def job(name: str = "job", **spec: Any) -> Json:
    """Return a DDPJob as a user writes it, with the plainest template unless `spec` has one."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name},
        "spec": {"template": template(), **spec},
    }


_SIDE_CAR = container("logs")

GOOD_MANIFESTS: dict[str, Json] = {
    "minimal": job(),
    "longest name": job("a" * MAX_NAME_LENGTH),
    "name of one letter": job("j"),
    "all scalars": job(
        replicas=4,
        nprocPerNode=2,
        backend="gloo",
        masterPort=23456,
        suspend=False,
        cleanPodPolicy="None",
        successPolicy="Rank0",
        activeDeadlineSeconds=3600,
        ttlSecondsAfterFinished=0,
        restart={"scope": "Pod", "maxRestarts": 0},
        checkpoint={"path": "/data/checkpoints"},
    ),
    "spares": job(spares=2, sparesPriorityClassName="low"),
    "slow ranks, reported": job(replicas=2, restart={"slowRank": {"factor": 1.01}}),
    "slow ranks, replaced": job(
        replicas=2,
        restart={"slowRank": {"factor": 2, "forSeconds": 5400, "action": "Replace"}},
    ),
    "slow ranks of an elastic job": job(
        replicas=1, elastic={"maxReplicas": 3}, restart={"slowRank": {"forSeconds": 90}}
    ),
    "every way to restart": job(
        statusPort=8080,
        progressDeadlineSeconds=900,
        progress={"logPattern": r"step (?P<step>\d+)/(?P<totalSteps>\d+)|loss=(?P<loss>\S+)"},
        schedulingTimeoutSeconds=600,
        restart={
            "maxRestarts": 10,
            "backoff": {"initialSeconds": 0, "maxSeconds": 60},
            "nodeFailureLimit": 0,
            "rules": [
                {"exitCodes": [3, 255], "ranks": [0], "action": "FailJob"},
                {"reasons": ["OOMKilled"], "action": "RestartPod", "charged": False},
                {"messageRegex": r"loss is \bnan\b", "action": "RestartGang"},
                {"classes": ["Disruption", "Infrastructure"], "action": "Ignore"},
            ],
        },
    ),
    "left alone": job(replicas=2, isolation="Job"),
    "left alone, on a network of its own": job(
        isolation="Job", template=template(hostNetwork=False)
    ),
    "an account and Secrets of its own": job(
        template=template(
            container(envFrom=[{"secretRef": {"name": "ddp-operator"}}]),
            serviceAccountName="ddp-operator-2",
            volumes=[{"name": "a", "secret": {"secretName": "my-ddp-operator-tokens"}}],
        )
    ),
    "on the nodes' network": job(isolation="None", template=template(hostNetwork=True)),
    "created suspended": job(suspend=True, replicas=3),
    "trainer behind a side car": job(template=template(_SIDE_CAR, container())),
    "first of containers without the name": job(template=template(container("main"), _SIDE_CAR)),
    "the only container with GPUs": job(
        nprocPerNode=8,
        backend="nccl",
        template=template(_SIDE_CAR, container("main", resources=gpus(gpu=8))),
    ),
    "the only container with any GPU": job(
        backend="nccl",
        template=template(
            container("logs", resources=gpus(gpu=0)), container("main", resources=gpus(gpu="8"))
        ),
    ),
    "kubectl's default container": job(
        template={
            "metadata": {"annotations": {"kubectl.kubernetes.io/default-container": "main"}},
            **template(_SIDE_CAR, container("main", env=[{"name": "A", "value": "b"}])),
        }
    ),
    "kubectl's default container, which an injector adds": job(
        template={
            "metadata": {"annotations": {"kubectl.kubernetes.io/default-container": "mesh"}},
            **template(container("main"), _SIDE_CAR),
        }
    ),
    "AMD's GPUs": job(
        nprocPerNode=8,
        backend="nccl",
        template=template(container(resources={"limits": {"amd.com/gpu": 8, "cpu": "96"}})),
    ),
    "as many cores as AWS' largest machine has": job(
        nprocPerNode=128,
        template=template(container(resources={"limits": {"aws.amazon.com/neuroncore": 128}})),
    ),
    "own environment": job(
        template=template(
            container(
                env=[
                    {"name": "MASTER_ADDR", "value": "elsewhere"},
                    {"name": "NCCL_DEBUG", "value": "INFO"},
                    {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                ]
            )
        )
    ),
    "rank set for a side car": job(
        template=template(container(), container("logs", env=[{"name": "RANK", "value": "0"}]))
    ),
    "restart policy said": job(template=template(restartPolicy="Never")),
    "restart policy said of a container": job(template=template(container(restartPolicy="Never"))),
    "side cars among the init containers": job(
        template=template(
            initContainers=[container("proxy", restartPolicy="Always"), container("download")]
        )
    ),
    "pod fields that the operator does not know": job(
        template={
            "metadata": {"labels": {"team": "vision"}, "annotations": {"note": "x"}},
            **template(
                container(workingDir="/src", stdin=False),
                terminationGracePeriodSeconds=5,
                securityContext={"runAsNonRoot": True, "runAsUser": 1000},
                nodeSelector={"disk": "ssd"},
                tolerations=[{"key": "mine", "operator": "Exists"}],
                volumes=[{"name": "scratch", "emptyDir": {}}],
            ),
        }
    ),
    "own shared memory": job(
        template=template(
            container(volumeMounts=[{"name": "shm", "mountPath": "/dev/shm"}]),
            volumes=[{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}],
        )
    ),
    "own checkpoint volume": job(
        template=template(
            container(volumeMounts=[{"name": "mine", "mountPath": "/checkpoints"}]),
            volumes=[{"name": "mine", "emptyDir": {}}],
        )
    ),
    "checkpoints on a claim": job(checkpoint={"persistentVolumeClaim": "training.shared-1"}),
    "checkpoints in a bucket": job(checkpoint={"gcsBucket": "my_bucket.example"}),
    "checkpoints on the node": job(checkpoint={"hostPath": "/var/lib/training", "path": "/ckpt"}),
    "accelerator": job(accelerator={"type": "nvidia-l4"}),
    "eight GPUs on spot": job(
        replicas=2,
        nprocPerNode=8,
        backend="nccl",
        accelerator={"type": "nvidia-h100-80gb", "count": 8, "provisioning": "spot"},
    ),
    "flex-start with wishes": job(
        accelerator={
            "type": "nvidia-b200",
            "count": 8,
            "provisioning": "flex-start",
        },
        template=template(
            nodeSelector={"cloud.google.com/gke-nodepool": "mine"},
            tolerations=[{"key": "dedicated", "operator": "Exists"}],
        ),
    ),
    "accelerator that the template selects, too": job(
        accelerator={"type": "nvidia-l4"},
        template=template(nodeSelector={"cloud.google.com/gke-accelerator": "nvidia-l4"}),
    ),
    "own GPU limit": job(backend="nccl", template=template(container(resources=gpus(gpu=2)))),
    "own GPU limit in quotes": job(
        nprocPerNode=2, template=template(container(resources=gpus(gpu="2")))
    ),
    "accelerator and the same limit": job(
        accelerator={"type": "nvidia-l4", "count": 2},
        template=template(container(resources=gpus(gpu=2))),
    ),
    "accelerator without count and an own limit": job(
        accelerator={"type": "nvidia-l4"}, template=template(container(resources=gpus(gpu=4)))
    ),
    "pods of two sizes": job(
        replicas=3,
        accelerator={"type": "nvidia-l4", "count": 4},
        overrides=[{"indexes": ["2"], "accelerator": {"type": "nvidia-l4", "count": 2}}],
    ),
    "pods of three kinds": job(
        replicas=9,
        nprocPerNode=2,
        overrides=[
            {"indexes": ["5-7", "0", "2-3"], "nprocPerNode": 1},
            {"indexes": ["8"], "template": {"spec": {"nodeSelector": {"disk": "ssd"}}}},
            {"indexes": ["1-1"], "nprocPerNode": "auto"},
        ],
    ),
    "more GPUs of a type that nobody knows": job(
        accelerator={"type": "nvidia-of-tomorrow", "count": 32}
    ),
    "parts of GPUs, more than the machine has GPUs": job(
        accelerator={"type": "nvidia-a100-80gb", "count": 14},
        template=template(nodeSelector={"cloud.google.com/gke-gpu-partition-size": "1g.10gb"}),
    ),
    "a GPU that is shared by time": job(
        replicas=2,
        accelerator={"type": "nvidia-l4"},
        template=template(
            nodeSelector={"cloud.google.com/gke-gpu-sharing-strategy": "time-sharing"}
        ),
    ),
    "arm machines": job(
        accelerator={"type": "nvidia-gb200", "count": 4},
        template=template(nodeSelector={"kubernetes.io/arch": "arm64"}),
    ),
    "as many pods and spares as nodes of an NVLink domain": job(
        replicas=16,
        spares=2,
        restart={"scope": "InPlace"},
        accelerator={"type": "nvidia-gb300", "count": 4, "network": "auto"},
    ),
    "an NVLink domain on machines with multi-networking": job(
        replicas=2, accelerator={"type": "nvidia-gb200", "count": 4, "network": "rdma"}
    ),
    "an elastic job in an NVLink domain": job(
        replicas=4,
        elastic={"maxReplicas": 18},
        accelerator={"type": "nvidia-gb200", "count": 4, "network": "dranet"},
    ),
    "more pods than nodes of an NVLink domain, without a network": job(
        replicas=20, accelerator={"type": "nvidia-gb200", "count": 4}
    ),
    "other processes in a part of an NVLink domain": job(
        replicas=2,
        accelerator={"type": "nvidia-gb200", "count": 4, "network": "auto"},
        overrides=[
            {
                "indexes": ["1"],
                "accelerator": {"type": "nvidia-gb200", "count": 4, "network": "auto"},
                "nprocPerNode": 2,
            }
        ],
    ),
    "what the machines have for a network": job(
        replicas=2, accelerator={"type": "nvidia-h200-141gb", "count": 8, "network": "auto"}
    ),
    "a network, and the GPUs in the template": job(
        replicas=2,
        accelerator={"type": "nvidia-h100-80gb", "network": "tcpx"},
        template=template(container(resources=gpus(gpu=8)), hostNetwork=False),
    ),
    "a network of machines that nobody knows": job(
        accelerator={"type": "nvidia-of-tomorrow", "count": 2, "network": "rdma"}
    ),
    "a compute class": job(replicas=2, accelerator={"computeClass": "gpus", "count": 8}),
    "a compute class of machines with a network": job(
        replicas=2, accelerator={"computeClass": "h200", "count": 8, "network": "rdma"}
    ),
    "a reservation": job(
        accelerator={
            "type": "nvidia-b200",
            "count": 8,
            "provisioning": "reservation",
            "reservation": {"name": "ours"},
        }
    ),
    "a sub-block of another project's reservation": job(
        accelerator={
            "type": "nvidia-b200",
            "count": 8,
            "provisioning": "reservation",
            "reservation": {
                "name": "shared",
                "project": "their-project",
                "blocks": "shared-block-0001",
                "subBlocks": "shared-block-0001-subblock-0002",
            },
        }
    ),
    "nodes that are queued for": job(
        replicas=2,
        accelerator={
            "type": "nvidia-h200-141gb",
            "count": 8,
            "provisioning": "queued",
            "maxRunSeconds": 604_800,
        },
        scheduling={"queueName": "team-a"},
    ),
    "spot nodes for a month": job(
        accelerator={"type": "nvidia-l4", "provisioning": "spot", "maxRunSeconds": 2_592_000}
    ),
    "a queue": job(replicas=2, scheduling={"queueName": "team-a"}),
    "a gang": job(
        replicas=2, scheduling={"gang": "coscheduling"}, template=template(schedulerName="gangs")
    ),
    "a gang in a queue": job(
        replicas=2, scheduling={"gang": "coscheduling", "queueName": "team-a"}
    ),
    "an elastic gang": job(
        replicas=4,
        scheduling={"gang": "kai"},
        elastic={"minReplicas": 2, "maxReplicas": 6},
    ),
    "a gang of KAI's, in a queue of KAI's": job(
        replicas=2,
        scheduling={"gang": "kai", "queueName": "team-a"},
        restart={"scope": "Pod"},
    ),
    "pods near each other": job(
        replicas=2, scheduling={"topology": {"level": "sub-block", "required": True}}
    ),
    "pods near each other, in a queue": job(
        replicas=2, scheduling={"queueName": "team-a", "topology": {"level": "block"}}
    ),
    "near by Kueue's own words": job(
        scheduling={"queueName": "team-a"},
        template={
            "metadata": {"annotations": {"kueue.x-k8s.io/podset-required-topology": "rack"}},
            **template(),
        },
    ),
    "labels of a queue's own": job(
        template={"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "team-b"}}, **template()}
    ),
    "a queue, and pods of two kinds": job(
        replicas=3,
        scheduling={"queueName": "research.gpus"},
        overrides=[{"indexes": ["0"], "nprocPerNode": 2}],
        restart={"rules": [{"exitCodes": [3], "action": "RestartGang"}]},
    ),
    "a queue, and pods of as many kinds as it admits": job(
        replicas=8,
        scheduling={"queueName": "team-a"},
        overrides=[{"indexes": [str(index)], "nprocPerNode": 2} for index in range(7)],
    ),
    "a queue, and single pods that are replaced": job(
        replicas=2, scheduling={"queueName": "team-a"}, restart={"scope": "Pod"}
    ),
    "a gang in a queue, and processes that restart in place": job(
        replicas=2,
        scheduling={"gang": "coscheduling", "queueName": "team-a"},
        restart={"scope": "InPlace", "rules": [{"exitCodes": [3], "action": "RestartPod"}]},
    ),
    "spares in a queue": job(
        replicas=2, spares=1, scheduling={"queueName": "team-a"}, restart={"scope": "Pod"}
    ),
    "a group of any size in a queue": job(
        replicas=4,
        spares=1,
        scheduling={"queueName": "team-a"},
        elastic={"minReplicas": 2, "maxReplicas": 8},
    ),
    "MIG slices": job(
        nprocPerNode=2,
        accelerator={"type": "nvidia-a100-80gb"},
        template=template(container(resources=gpus(mig=2))),
    ),
    "more gloo processes than GPUs": job(
        nprocPerNode=4, backend="gloo", template=template(container(resources=gpus(gpu=1)))
    ),
    "CPU limits only": job(
        nprocPerNode=4, template=template(container(resources=gpus(cpu="500m", memory="1Gi")))
    ),
    "a launcher for any image": job(
        launcher="inject",
        nprocPerNode=2,
        template=template(
            container("logs", command=["torchrun"]),
            container(command=["python", "train.py"], args=["torchrun"]),
            initContainers=[container("data")],
        ),
    ),
    "a group of any size": job(
        replicas=4,
        spares=1,
        restart={"scope": "Auto"},
        elastic={
            "minReplicas": 2,
            "maxReplicas": 8,
            "shrinkAfterSeconds": 0,
            "growAfterSeconds": 60,
            "batch": "perRank",
        },
    ),
    "checkpoints in memory": job(
        replicas=3,
        memoryCheckpoint={"sizeLimit": "1.5Gi", "copies": 2},
        template=template(
            container(
                resources=gpus(memory="1537Mi"),
                volumeMounts=[{"name": "mine", "mountPath": "/ddp-memory-of-mine"}],
            ),
            volumes=[{"name": "mine", "emptyDir": {}}],
        ),
    ),
    "checkpoints in the memory of one pod": job(
        memoryCheckpoint={"sizeLimit": "16Mi", "copies": 0}, restart={"scope": "InPlace"}
    ),
    "checkpoints in memory, in a group of any size": job(
        replicas=4,
        elastic={"minReplicas": 2},
        memoryCheckpoint={"sizeLimit": "2T", "copies": 1},
    ),
    "of this operator": job(managedBy="ddp-operator.io/ddpjob-controller"),
    "of another controller": job(managedBy="example.com/Some_controller/v1"),
    "of MultiKueue": job(
        managedBy="kueue.x-k8s.io/multikueue", scheduling={"queueName": "research"}
    ),
    "limits of another container": job(
        nprocPerNode=4, template=template(container(), container("viz", resources=gpus(gpu=1)))
    ),
}

DEFAULTS: Json = {
    "replicas": 1,
    "spares": 0,
    "nprocPerNode": "auto",
    "backend": "auto",
    "launcher": "auto",
    "masterPort": 29500,
    "checkpoint": {"path": "/checkpoints"},
    "statusPort": DEFAULT_STATUS_PORT,
    "restart": {
        "scope": "Auto",
        "maxRestarts": 3,
        "backoff": {"initialSeconds": 5, "maxSeconds": 300},
        "nodeFailureLimit": 2,
    },
    "startTimeoutSeconds": 600,
    "successPolicy": "AllPods",
    "suspend": False,
    "cleanPodPolicy": "Running",
}
"""The API server's version of a spec with only a template."""

_FOLDER = Path(__file__).parents[1] / "manifests" / "examples"
EXAMPLES: dict[str, Json] = {
    manifest["metadata"]["name"]: manifest
    for path in sorted(_FOLDER.glob("*.yaml"))
    for manifest in yaml.safe_load_all(path.read_text())
    if manifest["kind"] == KIND
}
"""The jobs of `manifests/examples`."""
