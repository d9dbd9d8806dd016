from typing import Any

import pytest
from ddp_operator.api.schema.crd import custom_resource_definition
from ddp_operator.kube import CUSTOM_RESOURCE_DEFINITIONS

from tests.unit.cli.conftest import Ddp
from tests.unit.kube.fake_api_server import FakeApiServer, Fault
from tests.unit.views.test_doctor import node, operator

DENIED = {"kind": "Status", "message": "you cannot list this", "reason": "Forbidden"}


@pytest.fixture
async def healthy(server: FakeApiServer) -> FakeApiServer:
    crd = custom_resource_definition()
    path = CUSTOM_RESOURCE_DEFINITIONS.path(name=crd["metadata"]["name"])
    kueue = {"name": "kueue.x-k8s.io", "preferredVersion": {"version": "v1beta2"}}
    server.documents = {
        "/version": {"gitVersion": "v1.37.0"},
        "/apis": {"groups": [kueue]},
        path: crd,
    }
    server.namespace_labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    labels = {"ddp-operator.io/component": "operator"}
    deployment = operator()
    deployment["metadata"]["labels"] = labels
    server.create("deployments", deployment)
    for plural, manifest in (
        ("nodes", node("a", gpus=8)),
        ("storageclasses", {"metadata": {"name": "slow"}}),
    ):
        manifest["metadata"]["namespace"] = ""
        server.create(plural, manifest)
    server.create("localqueues", {"metadata": {"name": "team", "namespace": "research"}})
    return server


def subjects(output: str) -> dict[str, str]:
    """Level by subject."""
    lines = (line for line in output.splitlines() if line and not line.startswith(" "))
    return {line[11:].partition(":")[0]: line[:9].rstrip() for line in lines if ":" in line}


async def test_healthy_cluster(ddp: Ddp, healthy: FakeApiServer) -> None:
    result = await ddp("doctor")
    assert result.exit_code == 0, result.output
    assert subjects(result.stdout) == {
        **dict.fromkeys(("cluster", "CRD", "operator", "your rights", "GPUs"), "ok"),
        **dict.fromkeys(("shared memory", "Pod Security", "schedulers", "queues"), "ok"),
        "native gangs": "ok",
        "storage": "warn",
    }
    assert "namespace research has team" in result.stdout
    assert "namespace research enforces restricted (latest): " in " ".join(result.stdout.split())
    assert healthy.count("GET", "/kueue.x-k8s.io/v1beta2/namespaces/research/localqueues") == 1
    changes = {request.method for request in healthy.requests} - {"GET"}
    assert changes == {"POST"}  # the access reviews
    assert all("reviews" in r.path for r in healthy.requests if r.method == "POST")


async def test_nvidias_api_group_is_looked_up(ddp: Ddp, healthy: FakeApiServer) -> None:
    a4x = node("x", {"cloud.google.com/gke-accelerator": "nvidia-gb200"}, gpus=4)
    a4x["metadata"]["namespace"] = ""
    healthy.create("nodes", a4x)
    assert subjects((await ddp("doctor")).stdout)["NVLink domains"] == "warn"
    nvidia = {"name": "resource.nvidia.com", "preferredVersion": {"version": "v1beta1"}}
    healthy.documents["/apis"]["groups"].append(nvidia)
    assert subjects((await ddp("doctor")).stdout)["NVLink domains"] == "ok"


async def test_rights_in_one_namespace_are_enough(ddp: Ddp, healthy: FakeApiServer) -> None:
    for part in ("/nodes", "/deployments", "/customresourcedefinitions", "/storageclasses"):
        healthy.faults.append(Fault("GET", 403, DENIED, times=9, path_part=part))
    healthy.denied = {("create", "pods")}
    result = await ddp("doctor")
    assert result.exit_code == 0, result.output
    found = subjects(result.stdout)
    assert {found[name] for name in ("operator", "GPUs", "storage")} == {"not known"}
    assert found["your rights"] == "warn"
    assert "create pods/exec in namespace research" in " ".join(result.stdout.split())


async def test_operator_is_found_without_cluster_wide_rights(
    ddp: Ddp, healthy: FakeApiServer
) -> None:
    healthy.faults.append(Fault("GET", 403, DENIED, path_part="/apis/apps/v1/deployments"))
    assert subjects((await ddp("doctor")).stdout)["operator"] == "ok"


async def test_empty_cluster(ddp: Ddp, server: FakeApiServer) -> None:
    server.resource_lists.clear()
    server.documents = {"/version": {"gitVersion": "v1.37.0"}, "/apis": {"groups": []}}
    result = await ddp("doctor")
    assert result.exit_code == 1
    found: dict[str, Any] = subjects(result.stdout)
    assert (found["CRD"], found["operator"]) == ("fail", "fail")
    assert "-> kubectl apply -f crds/ddpjobs.yaml" in result.stdout
