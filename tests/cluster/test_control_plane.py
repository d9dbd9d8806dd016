"""A real control plane: its users have their own rights, and a crash leaves nothing of it."""

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
from tests.cluster.processes import marked
from tests.cluster.state import Instance
from tests.cluster.teardown import sweep
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
