from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from ddp_client.pod_security import PodSecurity
from ddp_client.submit import (
    CheckpointLocation,
    GpuRequest,
    JobRequest,
    JobRequestError,
    MemoryCheckpoint,
    Mount,
    Scripts,
    admitted,
    job_manifest,
)
from ddp_client.submit.command import pod_command
from ddp_client.submit.gpus import SHORT_NAMES
from ddp_client.submit.job import parsed
from ddp_client.submit.scripts import MAX_BYTES
from ddp_operator.api import ranks
from ddp_operator.api.gpus import GPUS

from tests.good_manifests import Json

EIGHT = GpuRequest("nvidia-h100-80gb", 8)
REQUEST = JobRequest(name="resnet", image="me/train:1", command=("python", "train.py", "--lr", "1"))


def test_minimal_request() -> None:
    assert job_manifest(REQUEST) == {
        "apiVersion": "ddp-operator.io/v1alpha1",
        "kind": "DDPJob",
        "metadata": {"name": "resnet"},
        "spec": {
            "replicas": 1,
            "template": {
                "spec": {
                    "containers": [
                        {
                            "name": "trainer",
                            "image": "me/train:1",
                            "command": ["python", "train.py", "--lr", "1"],
                        }
                    ]
                }
            },
        },
    }


def test_full_request() -> None:
    request = replace(
        REQUEST,
        replicas=4,
        gpus=GpuRequest("nvidia-h100-80gb", 8),
        spot=True,
        cpu="8",
        memory="32Gi",
        queue="team",
        env={"A": "b=c"},
        env_from=("secret/wandb", "configmap/settings"),
        mounts=(Mount.parse("pvc/data:/data:ro"), Mount.parse("gs://bucket:/bucket")),
        checkpoint=CheckpointLocation.parse("gs://saves/"),
        max_restarts=50,
    )
    made = job_manifest(request)
    assert made["metadata"] == {"name": "resnet"}
    spec = made["spec"]
    assert spec["accelerator"] == {"type": "nvidia-h100-80gb", "count": 8, "provisioning": "spot"}
    assert spec["scheduling"] == {"queueName": "team"}
    assert spec["checkpoint"] == {"gcsBucket": "saves"}
    assert spec["restart"] == {"maxRestarts": 50}
    assert spec["template"]["metadata"] == {"annotations": {"gke-gcsfuse/volumes": "true"}}
    [container] = spec["template"]["spec"]["containers"]
    assert container["env"] == [{"name": "A", "value": "b=c"}]
    assert container["envFrom"] == [
        {"secretRef": {"name": "wandb"}},
        {"configMapRef": {"name": "settings"}},
    ]
    assert container["resources"] == {"requests": {"cpu": "8", "memory": "32Gi"}}
    assert container["volumeMounts"] == [
        {"name": "mount-0", "mountPath": "/data", "readOnly": True},
        {"name": "mount-1", "mountPath": "/bucket"},
    ]
    assert spec["template"]["spec"]["volumes"] == [
        {"name": "mount-0", "persistentVolumeClaim": {"claimName": "data"}},
        {
            "name": "mount-1",
            "csi": {
                "driver": "gcsfuse.csi.storage.gke.io",
                "volumeAttributes": {"bucketName": "bucket"},
            },
        },
    ]
    assert ranks.world_size(parsed(made).spec) == 32


RESTRICTED = PodSecurity("restricted")
RESTRICTED_POD = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
RESTRICTED_CONTAINER = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_restricted_namespace_gets_a_security_context() -> None:
    plain = job_manifest(REQUEST)
    pod = admitted(plain, RESTRICTED)["spec"]["template"]["spec"]
    assert pod.pop("securityContext") == RESTRICTED_POD
    assert pod["containers"][0].pop("securityContext") == RESTRICTED_CONTAINER
    assert pod == plain["spec"]["template"]["spec"], "nothing else is changed"
    for security in (None, PodSecurity("privileged"), PodSecurity("baseline")):
        assert admitted(plain, security) == plain


def test_processes_of_another_user() -> None:
    made = job_manifest(replace(REQUEST, user=1000))
    pod = made["spec"]["template"]["spec"]
    assert pod["securityContext"] == {
        "runAsUser": 1000,
        "fsGroup": 1000,
        "fsGroupChangePolicy": "OnRootMismatch",
        **RESTRICTED_POD,
    }
    assert pod["containers"][0]["securityContext"] == RESTRICTED_CONTAINER
    assert admitted(made, RESTRICTED) == made


@pytest.mark.parametrize("level", ["baseline", "restricted"])
def test_forbidden_mount_is_refused(level: Any) -> None:
    made = job_manifest(
        replace(REQUEST, mounts=(Mount.parse("pvc/a:/a"), Mount.parse("/disk:/data")))
    )
    assert admitted(made, PodSecurity("privileged")) == made
    with pytest.raises(
        JobRequestError, match=f"mount /disk: the namespace enforces Pod Security {level}"
    ):
        admitted(made, PodSecurity(level))


@pytest.mark.parametrize(
    ("command", "gpus", "launcher", "started"),
    [
        ("python train.py", 1, "auto", "python train.py"),
        ("python train.py -x", 8, "auto", "python -m torch.distributed.run train.py -x"),
        ("python -u -X dev t.py", 2, "auto", "python -u -X dev -m torch.distributed.run t.py"),
        ("python3 -m my.train", 2, "auto", "python3 -m torch.distributed.run -m my.train"),
        ("torchrun train.py", 8, "auto", "torchrun train.py"),
        ("bash start.sh", 8, "auto", "bash start.sh"),
        ("/a/python3.10 t.py", 8, "auto", "/a/python3.10 -m torch.distributed.run t.py"),
        ("env A=b python t.py", 8, "auto", "env A=b python -m torch.distributed.run t.py"),
        ("uv run t.py -x", 8, "auto", "uv run python -m torch.distributed.run t.py -x"),
        ("uv run python -u t.py", 8, "auto", "uv run python -u -m torch.distributed.run t.py"),
        ("uv run -m a.b -x", 8, "auto", "uv run python -m torch.distributed.run -m a.b -x"),
        ("python -mmy.train", 8, "auto", "python -m torch.distributed.run -m my.train"),
        ("/a/torchrun t.py", 8, "auto", "/a/torchrun t.py"),
        ("python -mtorch.distributed.run t.py", 8, "auto", "python -mtorch.distributed.run t.py"),
        ("torchrun t.py", 1, "torchrun", "torchrun t.py"),
        ("accelerate launch t.py", 1, "auto", "accelerate launch t.py"),
        ("accelerate launch t.py", 8, "none", "accelerate launch t.py"),
        ("python train.py", 8, "none", "python train.py"),
        ("python train.py", 1, "torchrun", "python -m torch.distributed.run train.py"),
        ("python a.py", 1, "bundled", "python -m ddp_trainer.launch -- python a.py"),
        ("", 8, "bundled", "python -m ddp_trainer.launch"),
        ("python a.py", 8, "inject", "python a.py"),
        ("", 8, "auto", ""),
    ],
)
def test_command_that_starts_the_processes(
    command: str, gpus: int, launcher: Any, started: str
) -> None:
    wanted = GpuRequest("nvidia-l4", gpus)
    request = replace(REQUEST, command=command.split(), gpus=wanted, launcher=launcher)
    assert pod_command(request) == started.split()


def test_injected_launcher() -> None:
    injected = job_manifest(replace(REQUEST, launcher="inject", command=("./a.sh",)))
    assert injected["spec"]["launcher"] == "inject"
    assert "launcher" not in job_manifest(replace(REQUEST, launcher="none"))["spec"]


def test_elastic_group_and_spares() -> None:
    request = replace(REQUEST, replicas=4, launcher="inject")
    spec = job_manifest(replace(request, min_replicas=2, max_replicas=6, spares=1))["spec"]
    assert (spec["elastic"], spec["spares"]) == ({"minReplicas": 2, "maxReplicas": 6}, 1)
    spec = job_manifest(replace(request, max_replicas=6))["spec"]
    assert (spec["elastic"], "spares" in spec) == ({"maxReplicas": 6}, False)
    assert "elastic" not in job_manifest(request)["spec"]
    spec = job_manifest(replace(request, queue="team", min_replicas=1, spares=1))["spec"]
    assert (spec["elastic"], spec["spares"]) == ({"minReplicas": 1}, 1), "in a queue, too"
    of_the_image = replace(request, command=(), launcher="auto")
    assert job_manifest(replace(of_the_image, spares=1))["spec"]["spares"] == 1


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("64Gi", {"sizeLimit": "64Gi"}),
        ("1.5Gi,copies=0", {"sizeLimit": "1.5Gi", "copies": 0}),
    ],
)
def test_checkpoints_in_memory(text: str, field: Json) -> None:
    memory = MemoryCheckpoint.parse(text)
    request = replace(REQUEST, replicas=4, launcher="inject", memory_checkpoint=memory)
    assert job_manifest(request)["spec"]["memoryCheckpoint"] == field
    assert "memoryCheckpoint" not in job_manifest(replace(request, memory_checkpoint=None))["spec"]


@pytest.mark.parametrize("text", ["64Gi,", "64Gi,copies", "64Gi,copies=-1", "64Gi,copies=٣", "1,2"])
def test_invalid_memory_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(JobRequestError, match=r"use SIZE or SIZE,copies=N"):
        MemoryCheckpoint.parse(text)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"launcher": "torchrun", "memory_checkpoint": MemoryCheckpoint("1Gi")},
            "memory-checkpoint: needs ddp_trainer's launcher",
        ),
        (
            {"launcher": "inject", "memory_checkpoint": MemoryCheckpoint("1 GB")},
            r"spec\.memoryCheckpoint\.sizeLimit: string should match pattern",
        ),
        (
            {"launcher": "inject", "memory_checkpoint": MemoryCheckpoint("1Gi", 4)},
            r"spec\.memoryCheckpoint\.copies: other pods keep them",
        ),
        ({"launcher": "auto", "min_replicas": 1}, "another size: needs ddp_trainer's launcher"),
        ({"launcher": "torchrun", "spares": 1}, "spares: needs ddp_trainer's launcher"),
        ({"min_replicas": 5}, r"spec\.elastic\.minReplicas: more than spec\.replicas"),
    ],
)
def test_invalid_group_is_refused(changes: Any, said: str) -> None:
    with pytest.raises(JobRequestError, match=said):
        job_manifest(replace(REQUEST, **{"replicas": 4, "launcher": "inject", **changes}))


def test_scripts_are_mounted_and_renamed_in_the_command() -> None:
    scripts = Scripts({"code/train.py": b"import model\n", "model.py": b"\xff\xfe"})
    request = replace(
        REQUEST, scripts=scripts, command=("python", "./model.py", "code/train.py", "x")
    )
    made = job_manifest(request)
    pod = made["spec"]["template"]["spec"]
    assert pod["containers"][0]["command"] == [
        *("python", "/ddp-scripts/model.py", "/ddp-scripts/train.py", "x")
    ]
    stored = scripts.config_map("resnet")
    [volume] = pod["volumes"]
    assert volume["configMap"]["name"] == stored["metadata"]["name"]
    assert stored["data"] == {"train.py": "import model\n"}
    assert stored["binaryData"] == {"model.py": "//4="}
    assert stored["immutable"] is True
    assert pod_command(replace(request, command=())) == ["python", "/ddp-scripts/train.py"]


def test_name_of_the_config_map_depends_on_the_files() -> None:
    names = {
        Scripts(files).name("a")
        for files in ({"x": b"1"}, {"x": b"2"}, {"y": b"1"}, {"x": b"1", "y": b""}, {"x": b"1y"})
    }
    assert len(names) == 5
    assert Scripts({"a/x": b"1", "y": b"2"}).name("a") == Scripts({"y": b"2", "x": b"1"}).name("a")


def test_short_names_of_gpus() -> None:
    assert set(SHORT_NAMES.values()) == set(GPUS)
    assert GpuRequest.parse("A100") == GpuRequest("nvidia-tesla-a100", 1)
    assert GpuRequest.parse("a100-80gb:8") == GpuRequest("nvidia-a100-80gb", 8)
    assert GpuRequest.parse("h100:8") == GpuRequest("nvidia-h100-80gb", 8)
    assert GpuRequest.parse("t4") == GpuRequest("nvidia-tesla-t4", 1)
    assert GpuRequest.parse("nvidia-l4:2") == GpuRequest("nvidia-l4", 2)
    assert GpuRequest.parse("nvidia-next-1tb:2") == GpuRequest("nvidia-next-1tb", 2)


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (GpuRequest.parse, "h100:x", "use a number from 1 to 128, such as 8 or h100:8"),
        (GpuRequest.parse, "h100:0", "use a number from 1 to 128, such as 8 or h100:8"),
        (GpuRequest.parse, "0", "use a number from 1 to 128"),
        (GpuRequest.parse, "cpu=8", "no resource of GPUs; use one like nvidia.com/gpu=8"),
        (GpuRequest.parse, "nvidia-L4 --x", "unknown type"),
        (Mount.parse, "data", "use pvc/NAME:/path"),
        (Mount.parse, "pvc/data:data", "absolute path"),
        (Mount.parse, "pvc/:/data", "use lower-case letters"),
        (Mount.parse, "disk/a:/data", "use pvc/NAME:/path"),
        (Mount.parse, "gs://Bad:/data", "use lower-case letters"),
        (CheckpointLocation.parse, "/mnt", "use pvc/NAME or gs://BUCKET"),
    ],
)
def test_invalid_text_is_refused(parse: Callable[[str], object], text: str, message: str) -> None:
    with pytest.raises(JobRequestError, match=message):
        parse(text)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a b.py": b""}, "in its name"),
        ({"a/x.py": b"", "b/x.py": b""}, "both become /ddp-scripts/x.py"),
        ({"x": bytes(MAX_BYTES + 1)}, "holds at most 1048576"),
    ],
)
def test_invalid_scripts_are_refused(files: dict[str, bytes], message: str) -> None:
    with pytest.raises(JobRequestError, match=message):
        Scripts(files)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "Res Net"}, "use lower-case letters"),
        ({"replicas": 0}, "spec.replicas"),
        ({"spot": True}, "needs gpus"),
        ({"user": 0}, "user 0: give a number from 1 to 2147483647; 0 is roo"),
        ({"user": 2**31}, "user 2147483648: give a number"),
        ({"env_from": ("vault/x",)}, "secret/NAME or configmap/NAME"),
        ({"env": {"RANK": "1"}}, "RANK"),
        ({"gpus": GpuRequest("nvidia-l4", 16)}, "spec.accelerator"),
        ({"gpus": GpuRequest.parse("h1000")}, "unknown type, use one of a100, a100-80gb"),
        ({"gpus": GpuRequest(count=8), "spot": True}, "needs gpus of a GKE type"),
        ({"launcher": "inject", "command": ()}, "spec.launcher: inject must know what to start"),
        (
            {"launcher": "bundled", "command": ("/a/torchrun", "a.py")},
            "launcher bundled: torchrun starts processes too",
        ),
        (
            {"gpus": EIGHT, "command": ("accelerate", "launch", "a.py")},
            r"accelerate: .* write python train\.py, which torchrun starts, or add --launcher none",
        ),
        (
            {"replicas": 2, "command": ("deepspeed", "a.py")},
            r"deepspeed: .* write python train\.py",
        ),
        (
            {"gpus": EIGHT, "command": ("bash", "-c", "python a.py | tee b")},
            "replace python with torchrun",
        ),
        ({"gpus": EIGHT, "command": ("./a.py",)}, r"\./a\.py: write python before it"),
        ({"launcher": "torchrun", "command": ("bash", "x")}, "the command must start Python"),
        ({"launcher": "torchrun", "command": ("python", "-c", "1")}, "a script or a module"),
    ],
)
def test_invalid_request_is_refused(changes: Any, message: str) -> None:
    with pytest.raises(JobRequestError, match=message):
        job_manifest(replace(REQUEST, **changes))


def gpu_node(label: str, value: str, resource: str = "nvidia.com/gpu") -> Json:
    labels = {label: value} if label else {}
    return {
        "metadata": {"name": "a", "labels": labels},
        "status": {"allocatable": {"cpu": "8", resource: "8"}},
    }


@pytest.mark.parametrize(
    ("text", "resource", "count"),
    [
        ("8", "nvidia.com/gpu", 8),
        ("amd.com/gpu=4", "amd.com/gpu", 4),
        ("habana.ai/gaudi=8", "habana.ai/gaudi", 8),
    ],
)
def test_number_of_gpus_needs_no_type(text: str, resource: str, count: int) -> None:
    made = job_manifest(replace(REQUEST, gpus=GpuRequest.parse(text)))
    assert "accelerator" not in made["spec"]
    pod = made["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"] == {"limits": {resource: count}}
    assert "nodeSelector" not in pod
    assert pod["tolerations"] == [{"key": resource, "operator": "Exists", "effect": "NoSchedule"}]
    assert ranks.world_size(parsed(made).spec) == count


@pytest.mark.parametrize(
    ("asked", "label", "value", "resource"),
    [
        ("h100:8", "nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu"),
        ("a100-80gb:2", "nvidia.com/gpu.product", "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu"),
        ("h100:8", "k8s.amazonaws.com/accelerator", "nvidia-h100-80gb", "nvidia.com/gpu"),
        ("t4:1", "karpenter.k8s.aws/instance-gpu-name", "t4", "nvidia.com/gpu"),
        ("h100:8", "agentpool", "h100pool", "nvidia.com/gpu"),
        (
            "a100:1",
            "node.kubernetes.io/instance-type",
            "Standard_NC24ads_A100_v4",
            "nvidia.com/gpu",
        ),
        ("mi300x:8", "amd.com/gpu.product-name", "AMD_Instinct_MI300X_OAM", "amd.com/gpu"),
    ],
)
def test_type_is_selected_by_the_label_of_the_nodes(
    asked: str, label: str, value: str, resource: str
) -> None:
    nodes = [gpu_node("agentpool", "cpu"), gpu_node(label, value, resource)]
    gpus = GpuRequest.parse(asked).on_nodes(nodes)
    pod = job_manifest(replace(REQUEST, gpus=gpus))["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {label: value}
    assert pod["containers"][0]["resources"] == {"limits": {resource: gpus.count}}


def test_type_on_gke_or_without_nodes_is_an_accelerator() -> None:
    gke = {"metadata": {"name": "a", "labels": {"cloud.google.com/gke-nodepool": "cpu"}}}
    for nodes in ([], [gke]):
        made = job_manifest(replace(REQUEST, gpus=GpuRequest.parse("h100:8").on_nodes(nodes)))
        assert made["spec"]["accelerator"] == {"type": "nvidia-h100-80gb", "count": 8}


def test_type_that_no_node_has_is_refused() -> None:
    nodes = [gpu_node("nvidia.com/gpu.product", "NVIDIA-L40S")]
    with pytest.raises(JobRequestError, match="no node has such; the cluster has NVIDIA-L40S"):
        GpuRequest.parse("l4:1").on_nodes(nodes)
    with pytest.raises(JobRequestError, match="no label for types"):
        GpuRequest.parse("l4:1").on_nodes([gpu_node("", "")])
