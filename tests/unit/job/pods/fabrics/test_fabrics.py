"""Tests of fabrics against golden files, which were compared with Google's manifests.

`DDP_WRITE_GOLDEN=1` writes the files again; review the difference.
"""

import json
import os
from copy import deepcopy
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from ddp_operator.api.gpus import GPUS, Fabric, networks
from ddp_operator.job.planning.convergence import explain_refusal
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.fabrics import PRIVILEGES, SideCars, on_fabric
from ddp_operator.job.pods.prerequisites import claim_templates
from ddp_operator.job.pods.state import Identity

from tests.good_manifests import Json, container
from tests.unit.job.builders import fresh_job

GOLDEN = Path(__file__).parent / "golden"
FABRICS: tuple[Fabric, ...] = get_args(Fabric)
PLAIN: Json = {
    "metadata": {"name": "digits-0-0", "labels": {"ddp-operator.io/job-name": "digits"}},
    "spec": {"containers": [container(), container("logs")]},
}
OWN: Json = {
    "metadata": {
        "annotations": {"networking.gke.io/interfaces": "[]", "note": "kept"},
        "labels": {"ddp-operator.io/job-name": "digits"},
    },
    "spec": {
        "initContainers": [container("download")],
        "containers": [
            container("logs"),
            container(
                env=[
                    {"name": "BASE", "value": "/opt"},
                    {"name": "LD_LIBRARY_PATH", "value": "$(BASE)/lib:/usr/local/nvidia/lib64"},
                    {"name": "NCCL_BUFFSIZE", "value": "1"},
                ],
                volumeMounts=[{"name": "mine", "mountPath": "/usr/local/gib/"}],
                securityContext={"runAsUser": 0, "capabilities": {"add": ["SYS_NICE"]}},
            ),
        ],
        "volumes": [{"name": "mine", "emptyDir": {}}],
    },
}


class Readable(yaml.SafeDumper):
    """A dumper that writes texts of several lines as blocks."""


def _in_lines(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


Readable.add_representer(str, _in_lines)


def made(fabric: Fabric, pod: Json) -> dict[str, Any]:
    return on_fabric(fabric, pod, trainer="trainer")


@pytest.mark.parametrize("fabric", FABRICS)
def test_a_plain_pod_gets_what_its_fabric_needs(fabric: Fabric) -> None:
    golden, pod = GOLDEN / f"{fabric}.yaml", made(fabric, PLAIN)
    if os.environ.get("DDP_WRITE_GOLDEN"):
        golden.write_text(yaml.dump(pod, Dumper=Readable, sort_keys=False, width=1000))
    assert pod == yaml.safe_load(golden.read_text())


@pytest.mark.parametrize("pod", [PLAIN, OWN], ids=["plain", "own"])
@pytest.mark.parametrize("fabric", FABRICS)
def test_fabric_applied_twice_changes_nothing(fabric: Fabric, pod: Json) -> None:
    before = deepcopy(pod)
    once = made(fabric, pod)
    assert json.dumps(made(fabric, once)) == json.dumps(once)
    assert pod == before, "the pod was changed in place"


@pytest.mark.parametrize("fabric", FABRICS)
def test_users_settings_are_kept(fabric: Fabric) -> None:
    pod = made(fabric, OWN)
    assert OWN["metadata"]["annotations"].items() <= pod["metadata"]["annotations"].items()
    assert pod["spec"]["initContainers"][-1] == container("download")
    first, second = pod["spec"]["containers"]
    # RDMA devices go to the first container.
    trainer, logs = (first, second) if fabric == "rdma" else (second, first)
    assert logs == container("logs")
    names = [entry["name"] for entry in trainer["env"]]
    assert len(names) == len(set(names))
    values = {entry["name"]: entry["value"] for entry in trainer["env"]}
    assert values["NCCL_BUFFSIZE"] == "1"
    assert values["LD_LIBRARY_PATH"].endswith("/usr/local/nvidia/lib64:$(BASE)/lib")
    assert names.index("BASE") < names.index("LD_LIBRARY_PATH"), "LD_LIBRARY_PATH refers to BASE"
    assert OWN["spec"]["containers"][1]["volumeMounts"][0] in trainer["volumeMounts"]
    paths = [mount["mountPath"].rstrip("/") for mount in trainer["volumeMounts"]]
    assert len(paths) == len(set(paths))
    assert trainer["securityContext"]["runAsUser"] == 0
    assert "SYS_NICE" in trainer["securityContext"]["capabilities"]["add"]


@pytest.mark.parametrize("fabric", FABRICS)
def test_all_mounted_volumes_exist(fabric: Fabric) -> None:
    spec = made(fabric, PLAIN)["spec"]
    volumes = {volume["name"] for volume in spec["volumes"]}
    mounted = {
        mount["name"]
        for one in (*spec["containers"], *spec.get("initContainers", ()))
        for mount in one.get("volumeMounts", ())
    }
    assert volumes == mounted


@pytest.mark.parametrize(("fabric", "image"), [("tcpx", "x:1"), ("tcpxo", "o:1")])
def test_operator_settings_choose_the_side_cars(fabric: Fabric, image: str) -> None:
    pod = on_fabric(fabric, PLAIN, trainer="trainer", side_cars=SideCars(tcpx="x:1", tcpxo="o:1"))
    [daemon] = pod["spec"]["initContainers"]
    assert (daemon["image"], daemon["restartPolicy"]) == (image, "Always")
    assert f"devices.gke.io/container.{daemon['name']}" in pod["metadata"]["annotations"]


@pytest.mark.parametrize("type_", [name for name, gpu in GPUS.items() if networks(gpu)])
def test_network_auto_selects_the_machines_fabric(type_: str) -> None:
    gpu = GPUS[type_]
    assert gpu.fabric is not None
    accelerator = {"type": type_, "count": gpu.most}
    plain, auto, named = (
        manifests.shape("digits", fresh_job(accelerator={**accelerator, **network}).spec, 0)
        for network in ({}, {"network": "auto"}, {"network": gpu.fabric})
    )
    assert auto == named == on_fabric(gpu.fabric, plain, trainer="trainer", gpu=gpu)
    assert plain != auto


def test_pods_claim_the_jobs_claim_template() -> None:
    accelerator = {"type": "nvidia-b200", "count": 8}
    job = fresh_job(accelerator={**accelerator, "network": "dranet"})
    [template], pod = claim_templates(job), manifests.pod(job, Identity(0, 0))
    [claim] = pod["spec"]["resourceClaims"]
    assert claim["resourceClaimTemplateName"] == template["metadata"]["name"] == job.name
    assert template["metadata"]["ownerReferences"] == pod["metadata"]["ownerReferences"]
    assert pod["spec"]["containers"][0]["resources"] == {
        "limits": {"nvidia.com/gpu": 8},
        "claims": [{"name": claim["name"]}],
    }
    assert template["spec"] == yaml.safe_load((GOLDEN / "dranet-claims.yaml").read_text())
    own = {"indexes": ["0"], "accelerator": {**accelerator, "network": "dranet"}}
    assert not list(claim_templates(fresh_job(accelerator=accelerator)))
    assert list(claim_templates(fresh_job(overrides=[own]))) == [template]


def test_template_may_select_another_network_profile() -> None:
    label = "gke.networks.io/accelerator-network-profile"
    own = {**PLAIN, "spec": {**PLAIN["spec"], "nodeSelector": {label: "mine", "disk": "ssd"}}}
    assert made("dranet", PLAIN)["spec"]["nodeSelector"] == {label: "auto"}
    assert made("dranet", own)["spec"]["nodeSelector"] == {label: "mine", "disk": "ssd"}
    assert "nodeSelector" not in made("rdma", PLAIN)["spec"]


def test_override_may_have_another_fabric() -> None:
    rdma = {"type": "nvidia-b200", "count": 8, "network": "rdma"}
    override = {"indexes": ["1"], "accelerator": {**rdma, "network": "none"}}
    job = fresh_job(accelerator=rdma, overrides=[override])
    interfaces = "networking.gke.io/interfaces"
    with_, without = (manifests.pod(job, Identity(index, 0)) for index in range(2))
    assert interfaces in with_["metadata"]["annotations"]
    assert interfaces not in without["metadata"]["annotations"]


REFUSAL = (
    'pods "digits-0-0" is forbidden: violates PodSecurity "baseline:latest": '
    'hostPath volumes (volume "libraries")'
)


def test_pod_security_refusal_is_explained() -> None:
    job = fresh_job(accelerator={"type": "nvidia-h100-mega-80gb", "count": 8, "network": "auto"})
    assert explain_refusal(job, REFUSAL) == (
        "namespace research enforces Pod Security baseline: set spec.accelerator.network to none, "
        "or run the job in a namespace that enforces privileged; tcpxo needs "
        f"{PRIVILEGES['tcpxo']}"
    )
    assert explain_refusal(job, "exceeded quota: pods") == "exceeded quota: pods"
    assert PRIVILEGES.keys() == set(FABRICS)
