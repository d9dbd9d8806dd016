"""The manifests for arguments of `run`."""

from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from ddp_client.sdk import JobRequestError, Options
from ddp_client.sdk.manifests import build_manifests
from ddp_operator.api.code import Code
from ddp_operator.api.constants import ANNOTATION_CODE, MAX_NAME_LENGTH
from ddp_protocol.code_archive import ROOT, WORK, unpack

from tests.unit.submit.test_job import gpu_node


def train(steps: int) -> None:
    print(steps)


def made(
    function: Any = None,
    command: Any = None,
    arguments: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[Any, Any]:
    given: Options = {"image": "mine:1", **options}  # type: ignore[typeddict-item]
    job, config_maps, _ = build_manifests(function, command, arguments, given, default_image=None)
    return job, config_maps


def test_gpus_by_number_and_by_the_label_of_the_nodes() -> None:
    node = gpu_node("nvidia.com/gpu.product", "NVIDIA-L4")
    for gpus, selector in ((2, None), ("l4:2", {"nvidia.com/gpu.product": "NVIDIA-L4"})):
        options: Options = {"image": "mine:1", "gpus": gpus}
        job, _, _ = build_manifests(
            None, ["python", "a.py"], None, options, default_image=None, nodes=[node]
        )
        pod = job["spec"]["template"]["spec"]
        assert pod.get("nodeSelector") == selector
        assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 2}


def test_a_function_with_gpus() -> None:
    job, [config] = made(
        train,
        arguments={"steps": 3},
        name="run-1",
        replicas=4,
        gpus="h100:8",
        spot=True,
        queue="team",
        env={"A": "b"},
        mounts=["pvc/data:/data:ro"],
        checkpoint="pvc/saved",
        max_restarts=7,
    )
    assert job["metadata"]["name"] == "run-1"
    spec = job["spec"]
    assert spec["replicas"] == 4
    assert spec["accelerator"] == {
        "type": "nvidia-h100-80gb",
        "count": 8,
        "provisioning": "spot",
    }
    assert spec["scheduling"] == {"queueName": "team"}
    assert spec["checkpoint"] == {"persistentVolumeClaim": "saved"}
    assert spec["restart"] == {"maxRestarts": 7}
    (container,) = spec["template"]["spec"]["containers"]
    assert container["command"][:3] == ["python", "-m", "torch.distributed.run"]
    assert container["env"] == [{"name": "A", "value": "b"}]
    data, scripts = container["volumeMounts"]
    assert data["mountPath"] == "/data"
    assert container["command"][3] == f"{scripts['mountPath']}/ddp_function.py"
    (text,) = config["data"].values()
    assert "def train(steps: int) -> None:" in text
    volumes = spec["template"]["spec"]["volumes"]
    assert volumes[1]["configMap"]["name"] == config["metadata"]["name"]


def random() -> None:
    pass


def test_script_of_a_function_hides_no_module() -> None:
    job, [config] = made(random)
    assert "random.py" not in config["data"]
    assert job["metadata"]["name"].startswith("random-")


def test_a_command() -> None:
    command = ["python", "-u", "a/Big_Model.py"]
    group: dict[str, Any] = {"replicas": 4, "min_replicas": 2, "spares": 1}
    group["memory_checkpoint"] = "2Gi,copies=1"
    job, config_maps = made(command=command, launcher="bundled", cpu="2", **group)
    assert config_maps == []
    assert (job["spec"]["elastic"], job["spec"]["spares"]) == ({"minReplicas": 2}, 1)
    assert job["spec"]["memoryCheckpoint"] == {"sizeLimit": "2Gi", "copies": 1}
    assert job["metadata"]["name"].startswith("big-model-")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["command"][:4] == ["python", "-m", "ddp_trainer.launch", "--"]
    assert container["resources"] == {"requests": {"cpu": "2"}}


def test_folder_travels_as_with_the_command_line(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)\n")
    (folder / "link").symlink_to(tmp_path)
    file = tmp_path / "requirements.txt"
    file.write_text("einops\n")
    with pytest.warns(UserWarning, match="workdir: 1 link or repository left out: link"):
        job, [config] = made(command=["python", "train.py"], workdir=folder, pip=file)
    pod = job["spec"]["template"]["spec"]
    assert pod["containers"][0]["workingDir"] == f"{ROOT}/{WORK}"
    assert pod["initContainers"][0]["command"][-1] == ".ddp-requirements.txt"
    code = Code.parse(job["metadata"]["annotations"][ANNOTATION_CODE])
    assert code is not None
    unpack(b64decode(config["binaryData"]["part-0"]), code.id, tmp_path)
    assert (tmp_path / WORK / "train.py").read_text() == "print(1)\n"


@pytest.mark.parametrize(
    ("program", "begin"),
    [("x" * 100, "x" * 30), ("/usr/bin/7z", "job-7z-"), ("___", "job-"), ("größe", "gr-e-")],
)
def test_default_name_is_unique_and_valid(program: str, begin: str) -> None:
    names = {made(command=[program])[0]["metadata"]["name"] for _ in range(3)}
    assert len(names) > 1
    assert all(name.startswith(begin) and len(name) <= MAX_NAME_LENGTH for name in names)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "give run a function, or a command"),
        ({"command": []}, "give run a function, or a command"),
        ({"command": "python train.py"}, r"give a list of words, such as \['python', 'train.py'\]"),
        ({"function": train, "command": ["true"]}, "not both"),
        ({"command": ["true"], "arguments": {}}, "arguments: only for a function"),
        ({"command": ["true"], "image": None}, "image: name an image with Python"),
        ({"command": ["true"], "gpu": "h100"}, "run has no argument gpu: "),
        ({"command": ["true"], "gpus": "h1000"}, "GPUs 'h1000': unknown type"),
        ({"command": ["true"], "mounts": ["data"]}, "mount 'data': use "),
        ({"command": ["true"], "checkpoint": "data"}, "checkpoint 'data': use "),
        ({"command": ["true"], "name": "A"}, "name 'A': use lower-case letters"),
        ({"command": ["true"], "replicas": -1}, r"spec\.replicas"),
        ({"function": train, "workdir": "."}, "workdir: only for a command"),
        ({"command": ["true"], "code_volume": "pvc/a"}, "code-volume: only a folder can be stored"),
        ({"command": ["true"], "code_volume": "a"}, "code-volume 'a': use pvc/NAME or gs://"),
        ({"command": ["true"], "pip": "/nosuch"}, "pip: cannot read /nosuch: No such file"),
    ],
)
def test_invalid_argument_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(JobRequestError, match=said):
        made(**given)


def test_none_equals_an_omitted_argument() -> None:
    assert made(command=["true"], name="job", gpus=None, mounts=None) == made(
        command=["true"], name="job"
    )
