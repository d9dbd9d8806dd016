"""Tests of the launcher that is injected into pods of any image."""

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.state import Identity

from tests.good_manifests import Json, container, gpus, template
from tests.unit.job.builders import fresh_job

IMAGE = "registry.example/ddp-operator:1"
PLAIN: Json = container(
    command=["./train"],
    args=["--lr", "0.1"],
    resources=gpus(gpu=2, cpu="4", memory="8Gi"),
    volumeMounts=[{"name": "data", "mountPath": "/data"}],
)


def job(launcher: str = "inject", trainer: Json = PLAIN, **spec: object) -> DDPJob:
    pod = {
        "initContainers": [container("fetch")],
        "volumes": [{"name": "data", "emptyDir": {}}],
    }
    found = template(trainer, container("logs"), **pod)
    return fresh_job(launcher=launcher, template=found, **spec)


def pod(of: DDPJob) -> Json:
    made: Json = manifests.pod(of, Identity(0, 0), launcher_image=IMAGE)["spec"]
    return made


def test_injected_launcher_is_copied_first_and_runs_the_command() -> None:
    spec, plain = pod(job()), pod(job("auto"))
    copying, *others = spec.pop("initContainers")
    assert others == plain.pop("initContainers")
    mount = {"name": "ddp-launcher", "mountPath": "/ddp-launcher"}
    assert (copying["name"], copying["image"]) == ("ddp-launcher", IMAGE)
    assert copying["command"] == ["cp", "-R", "/launcher/.", "/ddp-launcher"]
    assert copying["volumeMounts"] == [mount]
    [volume] = [each for each in spec.pop("volumes") if each not in plain["volumes"]]
    assert volume == {"name": "ddp-launcher", "emptyDir": {"sizeLimit": "16Mi"}}

    trainer, usual = spec["containers"][0], plain["containers"][0]
    assert trainer.pop("command") == ["python3", "/ddp-launcher", "--", "./train"]
    assert trainer.pop("volumeMounts") == [*usual.pop("volumeMounts"), {**mount, "readOnly": True}]
    assert usual.pop("command") == ["./train"]
    del plain["volumes"]
    assert spec == plain, "nothing else changes"


def test_injection_meets_pod_security_restricted() -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted"""
    copying = pod(job())["initContainers"][0]
    security = copying["securityContext"]
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["runAsNonRoot"] is True
    assert security["runAsUser"] != 0
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}


@pytest.mark.parametrize(
    "resources",
    [
        {"requests": {"cpu": "4", "memory": "8Gi"}, "limits": {"cpu": "4", "memory": "8Gi"}},
        {"requests": {"cpu": "500m"}, "limits": {"ephemeral-storage": "1Gi"}},
        {"limits": {}},
    ],
)
def test_injection_requests_what_the_trainer_does_without_devices(resources: Json) -> None:
    """A LimitRange judges each init container by its minimum, too. Equal requests pass it, they
    keep the pod's quality of service, and they do not add to the pod's requests.
    """
    devices = {"nvidia.com/gpu": 2, "hugepages-2Mi": "1Gi"}
    own = {kind: {**amounts, **devices} for kind, amounts in resources.items()}
    spec = pod(job(trainer={**PLAIN, "resources": own}))
    assert spec["initContainers"][0]["resources"] == resources
    assert spec["containers"][0]["resources"] == own


def test_trainer_without_resources_injects_none() -> None:
    trainer = {name: value for name, value in PLAIN.items() if name != "resources"}
    spec = pod(job(trainer=trainer))
    assert spec["initContainers"][0]["resources"] == {}


@pytest.mark.parametrize(
    ("command", "python"),
    [
        ("python", "python"),
        ("python3.12", "python3.12"),
        ("/opt/venv/bin/python3", "/opt/venv/bin/python3"),
        ("python2", "python3"),
        ("python-config", "python3"),
        ("bash", "python3"),
    ],
)
def test_injected_launcher_uses_the_commands_python(command: str, python: str) -> None:
    trainer = pod(job(trainer=container(command=[command, "train.py"])))["containers"][0]
    assert trainer["command"] == [python, "/ddp-launcher", "--", command, "train.py"]


def test_injected_launcher_runs_the_overrides_command() -> None:
    own = {"spec": {"containers": [container(command=["./other"])]}}
    made = manifests.pod(
        job(replicas=2, overrides=[{"indexes": ["1"], "template": own}]),
        Identity(1, 0),
        launcher_image=IMAGE,
    )
    [trainer] = made["spec"]["containers"]
    assert trainer["command"] == ["python3", "/ddp-launcher", "--", "./other"]
