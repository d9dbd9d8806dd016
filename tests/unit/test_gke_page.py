"""The page about GKE: facts that can be checked without a cluster."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ddp_operator.api.constants import API_VERSION
from ddp_operator.api.gpus import GPUS, networks
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.job.planning.words import unknown_accelerators
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.fabrics.rdma import claimed
from ddp_operator.job.pods.prerequisites import prerequisites
from ddp_operator.job.pods.state import Identity

from tests.unit.job.builders import fresh_job

MANIFESTS = Path(__file__).parents[2] / "manifests"
PAGE = (MANIFESTS.parent / "docs/how-to/gke.md").read_text()
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)
OBJECTS: list[dict[str, Any]] = [one for block in BLOCKS for one in yaml.safe_load_all(block)]
EXAMPLES = MANIFESTS / "examples"
OBJECTS += (yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text()) for name in ("gpu-gke", "a4x"))
CLASS, CLASS_JOB = yaml.safe_load_all((EXAMPLES / "dranet-compute-class.yaml").read_text())
OBJECTS.append(CLASS_JOB)
JOBS = [one for one in OBJECTS if one["apiVersion"] == API_VERSION]
FABRICS = {
    "digits-l4": None,
    "gpt-h100": "tcpxo",
    "gpt-h200": "rdma",
    "gpt-b200": "dranet",
    "gpt-b200-class": "dranet",
    "gpt-a4x": "dranet",
}
"""Networks of the page's jobs."""


def parsed(manifest: dict[str, Any]) -> DDPJob:
    stored = {"uid": "7d1c", "creationTimestamp": "2026-11-23T00:00:00Z", "generation": 1}
    metadata = {"namespace": "training", **manifest["metadata"], **stored}
    return DDPJob.parse({**manifest, "metadata": metadata})


def test_page_has_a_job_for_each_machine_type() -> None:
    assert {one["metadata"]["name"] for one in JOBS} == FABRICS.keys()


def test_page_shows_the_compute_class_of_the_example() -> None:
    assert [one for one in OBJECTS if one["kind"] == "ComputeClass"] == [CLASS]
    spec = CLASS["spec"]
    assert spec["nodePoolConfig"]["dra"]["networking"]["enabled"] is True
    job = parsed(CLASS_JOB)
    assert job.spec.accelerator is not None
    assert job.spec.accelerator.compute_class == CLASS["metadata"]["name"]
    [request] = claimed()["devices"]["requests"]
    for priority in spec["priorities"]:
        gpu = GPUS[priority["gpu"]["type"]]
        assert priority["acceleratorNetworkProfile"] == "auto"
        assert priority["machineType"].startswith(gpu.machines)
        assert "dranet" in networks(gpu)
        count = priority["gpu"]["count"]
        assert count == job.spec.accelerator.count == gpu.most == request["exactly"]["count"]
    pod = manifests.pod(job, Identity(0, 0))["spec"]
    assert pod["nodeSelector"] == {
        "cloud.google.com/compute-class": "b200-rdma",
        "gke.networks.io/accelerator-network-profile": "auto",
    }
    paths = {v["name"]: v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v}
    assert set(paths.values()) == {"/home/kubernetes/bin/nvidia", "/home/kubernetes/bin/gib"}
    mounts = [one for one in pod["containers"][0]["volumeMounts"] if one["name"] in paths]
    assert [one["readOnly"] for one in mounts] == [True, True]


def test_network_profile_needs_no_beta_command() -> None:
    assert "accelerator-network-profile=auto" in PAGE
    assert "gcloud beta container" not in PAGE


@pytest.mark.parametrize("manifest", JOBS, ids=lambda one: one["metadata"]["name"])
def test_jobs_of_the_page_are_valid(manifest: dict[str, Any]) -> None:
    job = parsed(manifest)
    assert job.status == DDPJobStatus()
    accelerator = job.spec.accelerator
    assert accelerator is not None
    assert accelerator.fabric == FABRICS[job.name]
    assert unknown_accelerators(job) == []
    for index in range(job.spec.replicas):
        pod = manifests.pod(job, Identity(index, 0))
        assert pod["spec"]["serviceAccountName"] == "trainer"
    kinds = [needed.manifest["kind"] for needed in prerequisites(job)]
    assert kinds == [
        *(["ComputeDomain"] if accelerator.domain_nodes else []),
        *(["ResourceClaimTemplate"] if accelerator.fabric == "dranet" else []),
    ]


def test_queue_of_the_page_fits_its_job() -> None:
    named = {(one["kind"], one["metadata"]["name"]): one for one in OBJECTS}
    [queued] = [job for job in map(parsed, JOBS) if job.spec.scheduling]
    assert queued.spec.scheduling is not None
    local = named["LocalQueue", queued.spec.scheduling.kueue_queue or ""]
    assert local["metadata"]["namespace"] == queued.namespace
    queue = named["ClusterQueue", local["spec"]["clusterQueue"]]
    [check] = queue["spec"]["admissionChecksStrategy"]["admissionChecks"]
    settings = named["AdmissionCheck", check["name"]]["spec"]["parameters"]
    assert (settings["kind"], settings["name"]) in named
    [group] = queue["spec"]["resourceGroups"]
    [flavor] = group["flavors"]
    assert ("ResourceFlavor", flavor["name"]) in named
    quota = {one["name"]: one["nominalQuota"] for one in flavor["resources"]}
    assert quota.keys() == set(group["coveredResources"])
    accelerator = queued.spec.accelerator
    assert accelerator is not None
    assert quota["nvidia.com/gpu"] >= queued.spec.replicas * accelerator.count


POOL = re.compile(r"--machine-type=(\S+) --accelerator=type=(\S+?),count=(\d+)")
NAMED = re.compile(r"CARDS=(\d) MACHINE=(\S+) GPU=(\S+) .*: (\d), (\S+), (\S+)$", re.M)


def test_machines_of_the_page_have_their_gpus() -> None:
    pools = [(machine, gpu, int(count)) for machine, gpu, count in POOL.findall(PAGE)]
    [named] = NAMED.findall(PAGE)
    pools.remove(("$MACHINE", "$GPU", 8))
    pools += [(named[1], named[2], 8), (named[4], named[5], 8)]
    assert len(pools) == 6
    for machine, gpu, count in pools:
        assert machine.startswith(GPUS[gpu].machines), f"{machine} has no {gpu}"
        assert count in GPUS[gpu].counts


def test_page_creates_all_networks_of_the_pods() -> None:
    [(cards, _, gpu, other_cards, _, other_gpu)] = NAMED.findall(PAGE)
    for number, type_ in ((cards, gpu), (other_cards, other_gpu)):
        job = fresh_job(accelerator={"type": type_, "count": 8, "network": "auto"})
        annotations = manifests.pod(job, Identity(0, 0))["metadata"]["annotations"]
        networks = re.findall(r'"(vpc\d)"', annotations["networking.gke.io/interfaces"])
        assert networks == [f"vpc{card}" for card in range(1, int(number) + 1)]


def test_readme_links_to_the_page() -> None:
    assert "(docs/how-to/gke.md)" in (MANIFESTS.parent / "README.md").read_text()
