"""A real node: pods run, find each other and can be read, and after any crash nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import ClusterUnavailableError, node, provider
from tests.cluster.cgroups import cgroup_path, hierarchies
from tests.cluster.client import wait_until
from tests.cluster.node_config import SANDBOX_IMAGE
from tests.cluster.preparation import binaries, images
from tests.cluster.processes import ProcessId, marked
from tests.cluster.state import Instance, state_root
from tests.cluster.teardown import remove_named
from tests.skipping import skip_or_fail

REPOSITORY = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

# A name for each worker of pytest-xdist; within one, tests follow each other.
NAME = f"test-{os.getpid()}"
FOLDER = state_root() / NAME
DEADLINE_S = 120.0

PAIR = """
apiVersion: v1
kind: Service
metadata: {name: pair}
spec: {clusterIP: None, publishNotReadyAddresses: true, selector: {app: pair}}
---
apiVersion: v1
kind: Pod
metadata: {name: never-ready, labels: {app: pair}}
spec:
  hostname: first
  subdomain: pair
  containers:
  - name: main
    image: ddp-busybox:dev
    imagePullPolicy: IfNotPresent
    readinessProbe: {exec: {command: ["false"]}}
    command: [sh, -c, "while true; do echo reached | nc -l -p 29500; done"]
---
apiVersion: v1
kind: Pod
metadata: {name: client, labels: {app: pair}}
spec:
  hostname: second
  subdomain: pair
  restartPolicy: Never
  containers:
  - name: main
    image: ddp-busybox:dev
    imagePullPolicy: IfNotPresent
    command:
    - sh
    - -c
    - |
      until nslookup first.pair.default.svc.cluster.local; do sleep 0.1; done >/dev/null 2>&1
      nslookup third.pair.default.svc.cluster.local >/dev/null 2>&1 && echo third exists
      nc -w 5 10.96.0.1 443 </dev/null && echo API server has its Service address
      until nc -w 5 first.pair 29500; do sleep 0.1; done 2>/dev/null
"""


def command(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.cluster", *words],
        cwd=REPOSITORY,
        # A kubeconfig or a Docker engine of this machine is beside the point here.
        env={**os.environ, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DDP_TEST_KUBECONFIG": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def output_of(*words: str) -> str:
    with command(*words) as process:
        output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


def kubectl(*words: str, stdin: str | None = None) -> str:
    result = subprocess.run(
        [binaries.kubectl(), f"--kubeconfig={FOLDER}/admin.kubeconfig", *words],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def pod(running: node.Node, name: str) -> dict[str, Any]:
    found: dict[str, Any] = running.client.get(f"/api/v1/namespaces/default/pods/{name}")
    return found


def assert_usable_when_given(running: node.Node) -> None:
    """Hand the cluster over, as a person does with one that was started by hand."""
    # Of this run alone: the images of a node are kept from one cluster to the next.
    name = f"{SANDBOX_IMAGE}-{os.getpid()}"
    built = images.BuiltImage(Path("ddp-busybox-1.tar"), SANDBOX_IMAGE, name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(provider.KUBECONFIG_VARIABLE, str(running.kubeconfig))
        with provider.cluster() as given:
            with pytest.raises(ClusterUnavailableError, match="load ddp-busybox"):
                images.load(built, given)
            running.tag_image(built.name, as_name=built.content_name)
            wait_until(
                lambda: built.content_name in given.images(),
                what="node's report of an image",
                deadline_s=DEADLINE_S,
            )
            images.load(built, given)
    running.remove_image(name)
    assert running.healthy()


def interfaces() -> set[str]:
    listed = subprocess.run(["ip", "-j", "link"], capture_output=True, check=True).stdout
    return {link["ifname"] for link in json.loads(listed)}


def assert_nothing_left(instance: Instance, processes: set[ProcessId]) -> None:
    assert not [process for process in processes if process.alive()]
    assert not marked(instance.folder)
    assert not instance.folder.exists()
    assert not instance.data_dir.exists()
    assert f"ddp-{instance.subnet}" not in interfaces()
    assert not [root for root in hierarchies() if (root / cgroup_path(NAME).strip("/")).exists()]
    mounts = Path("/proc/self/mounts").read_text()
    assert str(instance.folder) not in mounts
    assert (
        f"10.{instance.subnet}."
        not in subprocess.run(["ip", "route"], capture_output=True, text=True, check=True).stdout
    )


def firewall() -> str:
    """Which tables of the host's legacy packet filter exist; using one brings it into being."""
    tables = Path("/proc/net/ip_tables_names")
    return tables.read_text() if tables.exists() else ""


def all_processes(instance: Instance) -> set[ProcessId]:
    """Every descendant of the node's first process: components, shims and containers."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    family = {instance.processes["namespaces"].pid}
    while younger := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= younger
    return {process for process in map(ProcessId.of, family) if process is not None}


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    try:
        node.require()
    except ClusterUnavailableError as reason:
        skip_or_fail("TEST CLUSTER", reason)
    remove_named(NAME)
    yield
    remove_named(NAME)


def test_pods_run_and_a_crashed_node_is_removed_without_trace() -> None:
    settings = [Path("/proc/sys/kernel/panic"), Path("/proc/sys/vm/overcommit_memory")]
    before = ([path.read_text() for path in settings], firewall(), Path("/run/netns").exists())

    assert output_of("up", "--name", NAME).strip() == (
        f"export KUBECONFIG={FOLDER}/admin.kubeconfig"
    )
    kubectl("apply", "-f", "-", stdin=PAIR)
    running = node.Node(Instance.load(FOLDER))
    wait_until(
        lambda: pod(running, "client")["status"]["phase"] == "Succeeded",
        what="pod that talks to the other",
        deadline_s=DEADLINE_S,
    )
    # By name, through the address of a pod that is not ready, in the order of its commands.
    assert kubectl("logs", "client") == "API server has its Service address\nreached\n"

    running.set_capacity("nvidia.com/gpu", 4)
    capacity = running.client.get(f"/api/v1/nodes/{running.node_name}")["status"]["capacity"]
    assert capacity["nvidia.com/gpu"] == "4"

    instance = Instance.load(FOLDER)
    started_once = dict(instance.processes)
    assert output_of("up", "--name", NAME).startswith("export KUBECONFIG=")
    assert Instance.load(FOLDER).processes == started_once, "a healthy cluster is kept"

    assert_usable_when_given(running)

    processes = all_processes(instance)
    commands = [process.command() for process in processes]
    assert any("containerd-shim" in line for line in commands)
    assert any("while true" in line for line in commands), "a container's process"
    for component in ("kubelet", "containerd"):
        (found,) = [
            process
            for process, command in zip(processes, commands, strict=True)
            if Path(command.partition(" ")[0]).name == component
        ]
        os.kill(found.pid, signal.SIGKILL)
    assert output_of("down", "--name", NAME) == f"cluster '{NAME}' removed\n"
    assert_nothing_left(instance, processes)
    assert ([path.read_text() for path in settings], firewall(), Path("/run/netns").exists()) == (
        before
    )
    assert output_of("down", "--name", NAME) == f"cluster '{NAME}' was not there\n"


def test_a_start_that_is_killed_midway_is_removed_without_trace() -> None:
    with command("up", "--name", NAME) as starter:
        wait_until(
            lambda: any("kube-apiserver" in each.command() for each in marked(FOLDER)),
            what="API server",
            deadline_s=DEADLINE_S,
        )
        starter.send_signal(signal.SIGKILL)
    instance = Instance.load(FOLDER)
    processes = all_processes(instance)
    assert processes
    assert output_of("down", "--name", NAME) == f"cluster '{NAME}' removed\n"
    assert_nothing_left(instance, processes)
