"""Small jobs of other projects, with the ranks and variables that their processes have there.

Each is written as people write that kind: flags of torchrun, lines of a shell, indexes from labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.e2e.jobs import RESTRICTED_CONTAINER, RESTRICTED_POD, TRAINER_IMAGE
from tests.e2e.kubectl import Manifest

PROBE = "/probe/probe.py"
PLAIN_IMAGE = "plain-python:dev"
RUNTIME = "probe"
_FLAGS = ("--nnodes=2", "--master-port=29400")

End = Literal["Succeeded", "Failed"]


@dataclass(frozen=True)
class Input:
    """One job, and its expected ranks, variables and end."""

    manifest: Manifest
    ranks: Sequence[tuple[int, int]]
    """Rank and local rank of each process."""
    end: End = "Succeeded"
    env: Sequence[dict[str, str]] = ()
    """By node rank: the values of WANTED's variables; empty: none."""
    others: Sequence[Manifest] = field(default=())
    """Other objects that the original needs."""

    @property
    def kind(self) -> str:
        """The original's kind."""
        kind: str = self.manifest["kind"]
        return kind

    @property
    def name(self) -> str:
        """The job's name, here and there."""
        name: str = self.manifest["metadata"]["name"]
        return name


def _pod(command: Sequence[str], *, image: str, name: str, env: Any, **fields: Any) -> Any:
    container = {
        "name": name,
        "image": image,
        "command": [*command],
        "env": [*env, {"name": "HOME", "value": "/tmp"}, {"name": "OMP_NUM_THREADS", "value": "1"}],
        "securityContext": RESTRICTED_CONTAINER,
        "volumeMounts": [
            {"name": "probe", "mountPath": "/probe"},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    volumes = [
        {"name": "probe", "configMap": {"name": "probe"}},
        {"name": "tmp", "emptyDir": {}},
    ]
    return {
        "securityContext": RESTRICTED_POD,
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "volumes": volumes,
        **fields,
    }


def _env(values: dict[str, str], **references: str) -> list[Any]:
    """Variables, and some that tell a field of the pod; WANTED names them all."""
    told = {name: value for name, value in values.items() if name not in ("STAYS", "ENDS")}
    found: list[Any] = [{"name": name, "value": value} for name, value in values.items()]
    found += [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in references.items()
    ]
    wanted = " ".join([*(name for name in told if name != "MASTER"), *references])
    return [*found, {"name": "WANTED", "value": wanted}]


def _object(api: str, kind: str, name: str, spec: Any) -> Manifest:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _service(name: str, labels: dict[str, str]) -> Manifest:
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": labels}
    return _object("v1", "Service", name, spec)


def _indexed_job(name: str, command: Sequence[str], env: Any, *, pods: int = 2) -> Manifest:
    pod = _pod(
        command, image=TRAINER_IMAGE, name="main", env=env, subdomain=name, restartPolicy="Never"
    )
    spec = {
        "completionMode": "Indexed",
        "parallelism": pods,
        "completions": pods,
        "backoffLimit": 0,
        "template": {"metadata": {"labels": {"app": name}}, "spec": pod},
    }
    return _object("batch/v1", "Job", name, spec)


def _pytorch_job(name: str, spec: Any, **replicas: Any) -> Manifest:
    spec = {"pytorchReplicaSpecs": replicas, **spec}
    return _object("kubeflow.org/v1", "PyTorchJob", name, spec)


def _replicas(count: int, command: Sequence[str], env: Any, *, image: str = PLAIN_IMAGE) -> Any:
    pod = _pod(command, image=image, name="pytorch", env=env)
    return {"replicas": count, "restartPolicy": "Never", "template": {"spec": pod}}


def _jobs_inputs() -> list[Input]:
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    flags = ("--nproc-per-node=2", "--node-rank=$(JOB_COMPLETION_INDEX)")
    name, four = "job-flags", [(0, 0), (1, 1), (2, 0), (3, 1)]
    command = ["torchrun", *_FLAGS, *flags, f"--master-addr={name}-0.{name}", PROBE]
    found = [
        Input(
            _indexed_job(name, command, _env({"LR": "0.1"}, APP="metadata.labels['app']")),
            four,
            env=[{"LR": "0.1", "APP": name}] * 2,
            others=[_service(name, {"app": name})],
        )
    ]
    name = "job-shell"
    line = (
        "exec torchrun --nnodes=2 --nproc-per-node=1 --node-rank=$JOB_COMPLETION_INDEX "
        f"--master-addr=$MASTER --master-port=29400 {PROBE}"
    )
    env = _env({"MASTER": f"{name}-0.{name}"}, INDEX=index)
    found.append(
        Input(
            _indexed_job(name, ["sh", "-c", line], env),
            [(0, 0), (1, 0)],
            env=[{"INDEX": "0"}, {"INDEX": "1"}],
            others=[_service(name, {"app": name})],
        )
    )
    name = "job-fails"
    flags = ("--nproc-per-node=1", "--node-rank=$(JOB_COMPLETION_INDEX)")
    launch = ["python", "-m", "torch.distributed.run", *_FLAGS, *flags, "--max-restarts=0"]
    command = [*launch, f"--master-addr={name}-0.{name}", PROBE]
    found.append(
        Input(
            _indexed_job(name, command, _env({"ENDS": "0:3"})),
            [(0, 0), (1, 0)],
            end="Failed",
            others=[_service(name, {"app": name})],
        )
    )
    return found


def _pytorch_inputs() -> list[Input]:
    """Return PyTorchJobs. Their variables are those in the training operator's documentation."""
    three = [(0, 0), (1, 0), (2, 0)]
    probe = ["python3", PROBE]
    index = "metadata.labels['training.kubeflow.org/replica-index']"
    return [
        Input(
            _pytorch_job(
                "pytorch-master",
                {},
                Master=_replicas(1, probe, _env({"LR": "0.1", "ROLE": "master"})),
                Worker=_replicas(2, probe, _env({"LR": "0.1", "ROLE": "worker"})),
            ),
            three,
            env=[{"LR": "0.1", "ROLE": role} for role in ("master", "worker", "worker")],
        ),
        Input(
            _pytorch_job(
                "pytorch-torchrun",
                {"nprocPerNode": "2"},
                Worker=_replicas(
                    2, ["torchrun", PROBE], _env({}, INDEX=index), image=TRAINER_IMAGE
                ),
            ),
            [(0, 0), (1, 1), (2, 0), (3, 1)],
            env=[{"INDEX": "0"}, {"INDEX": "1"}],
        ),
        Input(
            _pytorch_job(
                "pytorch-serve",
                {"runPolicy": {"cleanPodPolicy": "Running"}},
                Master=_replicas(1, probe, _env({})),
                Worker=_replicas(2, probe, _env({"STAYS": "1 2"})),
            ),
            three,
        ),
        Input(
            _pytorch_job(
                "pytorch-fails",
                {},
                Master=_replicas(1, probe, _env({"ENDS": "0:3"})),
                Worker=_replicas(1, probe, _env({})),
            ),
            [(0, 0), (1, 0)],
            end="Failed",
        ),
    ]


def _jobset(name: str, command: Sequence[str], env: Any, *, jobs: int = 1, **spec: Any) -> Manifest:
    image = TRAINER_IMAGE if command[0] == "torchrun" else PLAIN_IMAGE
    pod = _pod(command, image=image, name="main", env=env, restartPolicy="Never")
    pods = 2 // jobs
    job = {
        "completionMode": "Indexed",
        "parallelism": pods,
        "completions": pods,
        "backoffLimit": 0,
        "template": {"spec": pod},
    }
    replicated = {"name": "w", "replicas": jobs, "template": {"spec": job}}
    spec = {"network": {"publishNotReadyAddresses": True}, "replicatedJobs": [replicated], **spec}
    return _object("jobset.x-k8s.io/v1alpha2", "JobSet", name, spec)


def _jobset_inputs() -> list[Input]:
    two = [(0, 0), (1, 0)]
    name = "jobset-flags"
    flags = ("--nproc-per-node=2", "--node-rank=$(JOB_COMPLETION_INDEX)")
    command = ["torchrun", *_FLAGS, *flags, f"--master-addr={name}-w-0-0.{name}", PROBE]
    found = [
        Input(
            _jobset(name, command, _env({"LR": "0.1"})),
            [(0, 0), (1, 1), (2, 0), (3, 1)],
            env=[{"LR": "0.1"}] * 2,
        )
    ]
    name = "jobset-jobs"
    index = "metadata.annotations['jobset.sigs.k8s.io/job-index']"
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": f"{name}-w-0-0.{name}", "MASTER_PORT": "29400"}
    env: list[Any] = [{"name": key, "value": value} for key, value in place.items()]
    env += [{"name": "RANK", "valueFrom": {"fieldRef": {"fieldPath": index}}}]
    env += _env({}, INDEX=index)
    found.append(
        Input(
            _jobset(name, ["python3", PROBE], env, jobs=2),
            two,
            env=[{"INDEX": "0"}, {"INDEX": "1"}],
        )
    )
    name = "jobset-coordinator"
    coordinator = "metadata.annotations['jobset.sigs.k8s.io/coordinator']"
    line = (
        "export RANK=$JOB_COMPLETION_INDEX WORLD_SIZE=2 MASTER_ADDR=$COORDINATOR "
        f"MASTER_PORT=29400; exec python3 {PROBE}"
    )
    reference = {"name": "COORDINATOR", "valueFrom": {"fieldRef": {"fieldPath": coordinator}}}
    found.append(
        Input(
            _jobset(
                name,
                ["sh", "-c", line],
                [reference, *_env({"ENDS": "0:3"})],
                coordinator={"replicatedJob": "w", "jobIndex": 0, "podIndex": 0},
            ),
            two,
            end="Failed",
        )
    )
    return found


def runtime() -> Manifest:
    """The runtime of the TrainJobs, as small as one can be."""
    pod = _pod(["true"], image=TRAINER_IMAGE, name="node", env=[], restartPolicy="Never")
    job = {"backoffLimit": 0, "completionMode": "Indexed", "template": {"spec": pod}}
    labels = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    replicated = {"name": "node", "template": {"metadata": {"labels": labels}, "spec": job}}
    spec = {
        "mlPolicy": {"numNodes": 1, "torch": {}},
        "template": {
            "spec": {
                "network": {"publishNotReadyAddresses": True},
                "replicatedJobs": [replicated],
            }
        },
    }
    made = dict(_object("trainer.kubeflow.org/v1alpha1", "ClusterTrainingRuntime", RUNTIME, spec))
    made["metadata"] = {"name": RUNTIME, "labels": {"trainer.kubeflow.org/framework": "torch"}}
    return made


def _trainjob(name: str, **trainer: Any) -> Manifest:
    spec = {"runtimeRef": {"name": RUNTIME}, "trainer": {"numNodes": 2, **trainer}}
    return _object("trainer.kubeflow.org/v1alpha1", "TrainJob", name, spec)


def _trainjob_inputs() -> list[Input]:
    two = [(0, 0), (1, 0)]
    line = (
        "export RANK=$PET_NODE_RANK WORLD_SIZE=$PET_NNODES MASTER_ADDR=$PET_MASTER_ADDR "
        f"MASTER_PORT=$PET_MASTER_PORT; exec python3 {PROBE}"
    )
    return [
        Input(
            _trainjob(
                "trainjob-torchrun",
                numProcPerNode=2,
                command=["torchrun", PROBE],
                env=_env({"LR": "0.1"}),
            ),
            [(0, 0), (1, 1), (2, 0), (3, 1)],
            env=[{"LR": "0.1"}] * 2,
        ),
        Input(
            _trainjob(
                "trainjob-python",
                image=PLAIN_IMAGE,
                command=["sh", "-c"],
                args=[line],
                env=_env({}, INDEX="metadata.labels['batch.kubernetes.io/job-completion-index']"),
            ),
            two,
            env=[{"INDEX": "0"}, {"INDEX": "1"}],
        ),
        Input(
            _trainjob(
                "trainjob-fails",
                image=PLAIN_IMAGE,
                command=["sh", "-c", line],
                env=_env({"ENDS": "0:3"}),
            ),
            two,
            end="Failed",
        ),
    ]


def automatic() -> list[Input]:
    """Return jobs of controllers in every cluster, and PyTorchJobs, which are only converted."""
    return [*_jobs_inputs(), *_pytorch_inputs()]


def of_peers() -> list[Input]:
    """Return jobs of JobSet and Kubeflow Trainer; their controllers are built from Go modules."""
    return [*_jobset_inputs(), *_trainjob_inputs()]


def source(one: Input) -> list[Any]:
    """Return the manifests that `ddp convert` reads."""
    found = [one.manifest, runtime()] if one.kind == "TrainJob" else [one.manifest]
    return deepcopy(found)
