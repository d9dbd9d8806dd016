"""Tests of addresses that the operator requests: only those of the job's pods."""

from typing import Any

import pytest
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.observed import observe
from ddp_operator.job.pods.projection import project
from ddp_operator.job.pods.state import Identity, PodState

from tests.good_manifests import Json, container, template
from tests.unit.job.builders import fresh_job, later, ready, stored, with_status

NODE = "192.0.2.1"


def read(status: Json, *, port: Any = None, **pod_spec: Any) -> PodState:
    """Return a pod of the job, with the user's status port if one is given."""
    env = [] if port is None else [{"name": "DDP_STATUS_PORT", "value": port}]
    job = fresh_job(template=template(container(env=env)))
    created = manifests.pod(job, Identity(0, 0))
    created["spec"] |= pod_spec
    return project({**created, "status": {"phase": "Running", **status}})


@pytest.mark.parametrize(
    ("ip", "address"),
    [
        ("10.8.0.7", "10.8.0.7:28737"),
        ("fd00::7", "[fd00::7]:28737"),
        ("", ""),
        (None, ""),
        ("169.254.169.254", ""),
        ("fe80::1", ""),
        ("::ffff:169.254.169.254", ""),
        ("fd00::7%/x", ""),
        ("0.0.0.0", ""),
        ("224.0.0.1", ""),
        ("metadata.internal", ""),
        ("10.8.0.7/x", ""),
        ("me@10.8.0.7", ""),
    ],
)
def test_address_must_be_a_pod_address(ip: str | None, address: str) -> None:
    assert read({"podIP": ip}).address == address


@pytest.mark.parametrize("port", ["1024", "8080", "65535"])
def test_users_status_port_is_used(port: str) -> None:
    assert read({"podIP": "10.8.0.7"}, port=port).address == f"10.8.0.7:{port}"


@pytest.mark.parametrize(
    "port",
    ["", "80", "443", "1023", "65536", "99999", "012345", "8080/x", "8080 ", "٨٠٨٠", "8080.5"],
)
def test_invalid_status_port_gives_no_address(port: str) -> None:
    assert read({"podIP": "10.8.0.7"}, port=port).address == ""


HOST_NETWORK = {"hostNetwork": True}
ON_NODE: list[tuple[Json, Json]] = [
    ({"podIP": NODE, "hostIP": NODE}, HOST_NETWORK),
    ({"podIP": NODE}, HOST_NETWORK),
    ({"podIP": NODE, "hostIP": NODE}, {}),
    ({"podIP": NODE, "hostIP": "192.0.2.2", "hostIPs": [{"ip": "192.0.2.2"}, {"ip": NODE}]}, {}),
]


@pytest.mark.parametrize(("status", "spec"), ON_NODE)
def test_node_address_is_used_only_with_host_network(status: Json, spec: Json) -> None:
    pod = read(status, **spec)
    assert pod.has_nodes_ip
    for pod_spec, address in (
        ({}, ""),
        ({"hostNetwork": False}, ""),
        ({"hostNetwork": None}, ""),
        (HOST_NETWORK, f"{NODE}:28737"),
    ):
        job = fresh_job(template=template(**pod_spec))
        assert observe(job, [pod]).current[0].address == address


@pytest.mark.parametrize("status", [{"hostIP": NODE}, {"hostIP": None, "hostIPs": None}, {}])
def test_pod_address_is_no_node_address(status: Json) -> None:
    pod = read({"podIP": "10.8.0.7", **status})
    assert not pod.has_nodes_ip
    assert observe(fresh_job(), [pod]).current[0].address == "10.8.0.7:28737"
    assert not read({"podIP": "", "hostIP": ""}).has_nodes_ip


def test_old_pod_with_a_node_address_has_no_address() -> None:
    job = fresh_job(replicas=1, progressDeadlineSeconds=60)
    job = stored(job, plan(job, [], later(0)))
    pod = ready(job, address=f"{NODE}:28737", has_nodes_ip=True)
    assert observe(with_status(job, attempt=1), [pod]).old[0].address == ""
