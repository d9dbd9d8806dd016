"""The examples for torchft set what its contract names, and its exit codes have their meaning."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from ddp_operator.api.constants import KIND
from ddp_operator.api.job import DDPJob
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.state import Identity

from tests.unit.job.builders import NOW, ended, later, ready, stored

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/how-to/torchft.md").read_text()
MOST_IN_A_HOST_NAME = 64
"""Linux' limit; Kubernetes starts no pod with a longer one."""


def documents(name: str) -> list[dict[str, Any]]:
    return [*yaml.safe_load_all((ROOT / f"manifests/examples/{name}.yaml").read_text())]


def of_kind(name: str, kind: str) -> dict[str, Any]:
    [found] = (one for one in documents(name) if one["kind"] == kind)
    return found


def jobs(name: str) -> list[DDPJob]:
    metadata = {"namespace": "default", "uid": "u", "creationTimestamp": NOW.isoformat()}
    return [
        DDPJob.parse({**one, "metadata": {**metadata, "generation": 1, **one["metadata"]}})
        for one in documents(name)
        if one["kind"] == KIND
    ]


def environment(job: DDPJob, index: int = 0, attempt: int = 0) -> Mapping[str, str]:
    """Return the trainer's variables as the kubelet sets them: references to earlier ones count."""
    pod = manifests.pod(job, Identity(index, attempt))
    found: dict[str, str] = {}
    for one in pod["spec"]["containers"][0]["env"]:
        value = one.get("value", "")
        found[one["name"]] = re.sub(r"\$\((\w+)\)", lambda name: found.get(name[1], name[0]), value)
    return found


def names_on_the_page(heading: str) -> set[str]:
    """Return the variables in the first column of the table below a heading."""
    table = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([A-Z_]+)`", row)}


GROUPS, [HOSTS] = jobs("torchft"), jobs("torchft-fsdp")


def test_each_group_gets_the_variables_that_the_page_names() -> None:
    variables = [environment(job) for job in GROUPS]
    of_torchft = names_on_the_page("Replica groups") - {"RANK", "WORLD_SIZE"}  # by the launcher
    assert len(of_torchft) >= 5
    for one in variables:
        assert of_torchft <= one.keys()
        assert one["NUM_REPLICA_GROUPS"] == str(len(GROUPS))
    assert [one["REPLICA_GROUP_ID"] for one in variables] == [str(n) for n in range(len(GROUPS))]
    assert len({one["MASTER_ADDR"] for one in variables}) == len(GROUPS), "each has its own store"


def test_groups_differ_only_in_name_and_number() -> None:
    first, second = (one["spec"] for one in documents("torchft") if one["kind"] == KIND)
    lines = [yaml.safe_dump(spec).splitlines() for spec in (first, second)]
    unlike = [pair for pair in zip(*lines, strict=True) if len(set(pair)) > 1]
    assert [[line.strip() for line in pair] for pair in unlike] == [["value: '0'", "value: '1'"]]


def test_groups_reach_the_lighthouse_and_each_other() -> None:
    service, policy = of_kind("torchft", "Service"), of_kind("torchft", "NetworkPolicy")["spec"]
    pod = of_kind("torchft", "Deployment")["spec"]["template"]
    [port] = pod["spec"]["containers"][0]["ports"]
    address = f"http://{service['metadata']['name']}:{port['containerPort']}"
    assert {environment(job)["TORCHFT_LIGHTHOUSE"] for job in GROUPS} == {address}
    assert service["spec"]["ports"] == [{"port": port["containerPort"]}]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    selector = policy["podSelector"]
    assert policy["ingress"] == [{"from": [{"podSelector": selector}]}]
    admitted = selector["matchLabels"].items()
    assert admitted <= pod["metadata"]["labels"].items()
    for job in GROUPS:
        assert admitted <= manifests.pod(job, Identity(0, 0))["metadata"]["labels"].items()


def test_host_names_of_groups_resolve_in_other_jobs() -> None:
    for job in GROUPS:
        pod = manifests.pod(job, Identity(0, 999))["spec"]
        assert pod["setHostnameAsFQDN"] is True
        full = f"{pod['hostname']}.{pod['subdomain']}.{job.namespace}.svc.cluster.local"
        assert len(full) <= MOST_IN_A_HOST_NAME


def test_each_host_gets_the_variables_that_the_page_names() -> None:
    variables = [environment(HOSTS, index) for index in range(HOSTS.spec.replicas)]
    of_torchft = names_on_the_page("Sharded models with spares: `torchft.fsdp`")
    of_torchft -= {"FTFSDP_HOST_NAME", "LOCAL_RANK", "FTFSDP_MIN_REPLICAS"}
    assert len(of_torchft) >= 4
    assert all(of_torchft <= one.keys() for one in variables)
    assert [one["FTFSDP_HOST_INDEX"] for one in variables] == ["0", "1", "2"]
    coordinator = of_kind("torchft-fsdp", "Job")["spec"]["template"]["spec"]["containers"][0]
    own = {one["name"]: one["value"] for one in coordinator["env"]}
    assert {one["FTFSDP_RUN_ID"] for one in variables} == {own["FTFSDP_RUN_ID"]}
    active = HOSTS.spec.replicas - 1
    assert int(own["FTFSDP_MIN_REPLICAS"]) == active * int(variables[0]["LOCAL_WORLD_SIZE"])
    service = of_kind("torchft-fsdp", "Service")
    name, ports = service["metadata"]["name"], [one["port"] for one in service["spec"]["ports"]]
    assert [one["containerPort"] for one in coordinator["ports"]] == ports == [29510, 29600]
    assert variables[0]["TORCHFT_LIGHTHOUSE"] == f"http://{name}:29510"
    assert variables[0]["FTFSDP_STORE_ADDR"] == f"{name}:29600"


def test_replaced_host_keeps_its_name() -> None:
    before, after = (manifests.pod(HOSTS, Identity(1, 0, number))["spec"] for number in (0, 1))
    assert before["hostname"] == after["hostname"]


@pytest.mark.parametrize(("code", "phase"), [(1, "Restarting"), (137, "Restarting"), (3, "Failed")])
def test_exit_code_of_a_host_restarts_it_alone_or_ends_the_job(code: int, phase: str) -> None:
    job = stored(HOSTS, plan(HOSTS, [], NOW))
    pods = [ready(job, index) for index in range(3)]
    job = stored(job, plan(job, pods, later(10)))
    planned = plan(job, [*pods[:2], ended(job, 2, code=code)], later(60))
    assert planned.status.phase == phase
    assert planned.status.attempt == 0, "the other hosts keep their pods"
    if phase == "Restarting":
        assert planned.status.failures[-1].action == "RestartPod"
        assert planned.status.bookkeeping.replacements == {"2": 1}


def test_host_that_fails_after_the_end_restarts_nothing() -> None:
    job = stored(HOSTS, plan(HOSTS, [], NOW))
    pods = [ready(job, index) for index in range(3)]
    job = stored(job, plan(job, pods, later(10)))
    ends = [ended(job, 0, code=0), ended(job, 1, code=0), ended(job, 2, code=1)]
    planned = plan(job, ends, later(60))
    assert planned.status.phase == "Succeeded"
