"""A real control plane: it serves, restarts with its data, and is cleared away after a crash."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import ClusterError, ClusterUnavailableError, ControlPlane, control_plane
from tests.cluster.client import wait_until
from tests.cluster.processes import ProcessId, marked, stop
from tests.cluster.state import Instance, create, instances
from tests.cluster.teardown import remove, sweep
from tests.skipping import skip_or_fail

REPOSITORY = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.cluster

START_AND_HANG = """
from tests.cluster import control_plane
with control_plane(controllers=False) as running:
    print(running.kubeconfig, flush=True)
    input()
"""


@pytest.fixture(scope="module")
def running() -> Iterator[ControlPlane]:
    try:
        with control_plane(controllers=True) as started:
            yield started
    except ClusterUnavailableError as reason:
        skip_or_fail("CONTROL PLANE", reason)


def config_map(name: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}


def test_objects_outlive_a_killed_api_server(running: ControlPlane) -> None:
    path = "/api/v1/namespaces/default/configmaps"
    running.client.request("POST", path, config_map("kept"))
    running.stop_apiserver()
    assert not running.client.ready()
    running.start_apiserver()
    assert running.client.get(f"{path}/kept")["metadata"]["name"] == "kept"


def test_the_server_counts_requests(running: ControlPlane) -> None:
    running.client.get("/api/v1/namespaces/default/configmaps")
    counted = [
        line
        for line in running.metrics().splitlines()
        if line.startswith("apiserver_request_total{")
        and 'resource="configmaps"' in line
        and 'verb="LIST"' in line
    ]
    assert counted


def test_controllers_collect_dependents(running: ControlPlane) -> None:
    path = "/api/v1/namespaces/default/configmaps"
    running.client.request("POST", path, config_map("owner"))
    owner = running.client.get(f"{path}/owner")
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner"}
    reference["uid"] = owner["metadata"]["uid"]
    dependent = config_map("dependent") | {
        "metadata": {"name": "dependent", "ownerReferences": [reference]}
    }
    running.client.request("POST", path, dependent)
    running.client.request("DELETE", f"{path}/owner")

    def names() -> set[str]:
        return {item["metadata"]["name"] for item in running.client.get(path)["items"]}

    # With each change of what the server has, such as the resource above, the collector stands
    # still until its caches have followed, and gives each try 30 s.
    wait_until(lambda: "dependent" not in names(), what="garbage collection", deadline_s=400)


def test_the_operator_user_may_nothing(running: ControlPlane) -> None:
    kubeconfig = json.loads(running.kubeconfig_for("operator").read_text())
    token = kubeconfig["users"][0]["user"]["token"]
    operator = dataclasses.replace(running.client, token=token)
    with pytest.raises(urllib.error.HTTPError) as refused:
        operator.get("/api/v1/namespaces/default/pods")
    assert refused.value.code == 403
    with refused.value as answer:
        assert 'User "operator" cannot list resource "pods"' in json.load(answer)["message"]
    with pytest.raises(ClusterError, match="no user 'nobody'"):
        running.kubeconfig_for("nobody")


def test_a_killed_owner_leaves_nothing(running: ControlPlane) -> None:
    # `running` has made sure that this machine can have one.
    owner = subprocess.Popen(
        [sys.executable, "-c", START_AND_HANG],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    assert owner.stdin is not None
    folder = Path(owner.stdout.readline().strip()).parent
    instance = Instance.load(folder)
    assert instance.owner is not None
    assert instance.owner.pid == owner.pid
    processes = marked(folder)
    assert set(instance.processes.values()) <= processes
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdin.close()
    owner.stdout.close()
    sweep()
    assert not folder.exists()
    assert not instance.data_dir.exists()
    assert not any(process.alive() for process in processes)
    assert running.client.ready(), "another's control plane is not touched"


def test_removal_spares_a_process_that_only_has_the_same_id() -> None:
    bystander = subprocess.Popen(["sleep", "1000"])
    same_id = ProcessId(bystander.pid, "another-boot/1")
    instance = create("test-recycled", "control-plane", owner=None, ports=2)
    try:
        instance.record("etcd", same_id)
        assert "test-recycled" in [each.name for each in instances()]
    finally:
        remove(instance)
    assert bystander.poll() is None
    assert not instance.folder.exists()
    found = ProcessId.of(bystander.pid)
    assert found is not None
    stop([found])
    bystander.wait()
