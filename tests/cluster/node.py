"""A whole Kubernetes of one node on bare Debian, in namespaces of its own: real pods, DNS, logs.

What it adds to the machine itself is one network interface, one cgroup and one folder; all the rest
lives in namespaces that vanish with their first process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

from tests.cluster.cache import cache_dir
from tests.cluster.cgroups import cgroup_path, make_cgroups
from tests.cluster.client import wait_until
from tests.cluster.components import START_DEADLINE_S, last_words
from tests.cluster.control_plane_config import ControlPlaneConfig, apiserver_argv, etcd_argv
from tests.cluster.errors import ClusterError, ClusterUnavailableError
from tests.cluster.machine import Machine
from tests.cluster.node_config import SANDBOX_IMAGE, NodeConfig
from tests.cluster.preparation import binaries, packages
from tests.cluster.preparation.busybox import busybox_archive, has_busybox
from tests.cluster.processes import ProcessId, marked, spawn, stop
from tests.cluster.state import Instance, create, registry

# Fixed in the kubelet (its device plugins) and in CNI's library.
MOUNT_POINTS = (Path("/var/lib/kubelet"), Path("/var/lib/cni"))
REPOSITORY = Path(__file__).resolve().parents[2]


def node_config(instance: Instance) -> NodeConfig:
    """Return how the node of ``instance`` is set up; the same inside and outside of it."""
    subnet = instance.subnet
    if subnet is None:
        raise ClusterError(f"cluster {instance.name!r} has no node")
    return NodeConfig(
        control_plane=ControlPlaneConfig(
            binaries=binaries.find(binaries.PODS),
            folder=instance.folder,
            data_dir=instance.data_dir,
            address=f"10.{subnet}.0.1",
            bind_address="0.0.0.0",
            # A network namespace of its own: the usual ports are free.
            port=443,
            etcd_port=2379,
            etcd_peer_port=2380,
            has_nodes=True,
            node_name=f"{instance.name}-node",
        ),
        subnet=subnet,
        image_root=cache_dir("containerd", str(instance.image_store)),
        cgroup=cgroup_path(instance.name),
    )


class Node(Machine):
    """A running single-node cluster."""

    def __init__(self, instance: Instance) -> None:
        super().__init__(node_config(instance))
        self._instance = instance

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of a user who may do everything."""
        return self._config.control_plane.kubeconfig("admin")

    @property
    def server(self) -> str:
        """The API server's URL."""
        return self._config.control_plane.server

    @property
    def instance(self) -> Instance:
        """Return the cluster's record on this machine."""
        return self._instance

    @property
    def logs(self) -> Path:
        """The folder of the components' log files."""
        return self._instance.logs

    def healthy(self) -> bool:
        """Tell whether pods can run right now."""
        namespaces = self._instance.processes.get("namespaces")
        return namespaces is not None and namespaces.alive() and self._ready()

    def offer_volumes(self, count: int) -> None:
        """Have volumes at hand for claims, as a provisioner would: folders that go with the
        cluster. Those that are there already stay.
        """
        for index in range(count):
            folder = self._instance.folder / "volumes" / str(index)
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o1777)  # pods run as any user
            volume = {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": f"volume-{index}"},
                "spec": {
                    "capacity": {"storage": "10Gi"},
                    "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
                    "hostPath": {"path": str(folder), "type": "Directory"},
                },
            }
            try:
                self.client.request("POST", "/api/v1/persistentvolumes", volume)
            except urllib.error.HTTPError as error:
                if error.code != HTTPStatus.CONFLICT:
                    raise

    def kill_container(self, pod: Any) -> None:
        """Kill the first process of a pod's one container, and all others with it, behind the
        kubelet's back.

        Raises ClusterError when it has ended already.
        """
        (status,) = pod["status"]["containerStatuses"]
        container_id = status["containerID"].removeprefix("containerd://")
        self._ctr("tasks", "kill", "--signal", "SIGKILL", container_id)

    def run(self, *argv: str | Path) -> str:
        """Run a program with the node's mounts and network, and return what it prints.

        Raises ClusterError when it fails.
        """
        init = self._instance.processes["node-init"]
        words = ["nsenter", "--target", str(init.pid), "--mount", "--net", *map(str, argv)]
        result = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
        if result.returncode:
            raise ClusterError(f"{' '.join(words)}: {result.stderr.strip()}")
        return result.stdout

    def spawn_beside(self, name: str, argv: Sequence[str | Path]) -> ProcessId:
        """Start a program in the node's network, where the API server has its loopback addresses;
        it ends with the node.
        """
        init = self._instance.processes["node-init"]
        pid = spawn(
            ["nsenter", "--target", str(init.pid), "--net", *argv],
            log=self._instance.logs / f"{name}.log",
            marker=self._instance.folder,
        )
        started = ProcessId.of(pid)
        if started is None:
            raise ClusterError(f"{name}: {last_words(self._instance.logs / f'{name}.log')}")
        return started

    def stop_apiserver(self) -> None:
        """Kill the API server without warning; connections to it break."""
        self._kill("kube-apiserver")

    def start_apiserver(self) -> None:
        """Start the API server again, and wait until it is ready."""
        self._start_again("kube-apiserver", apiserver_argv(self._config.control_plane))
        wait_until(self.client.ready, what="API server", deadline_s=START_DEADLINE_S)

    def stop_control_plane(self) -> None:
        """Kill the API server and etcd without warning."""
        self._kill("kube-apiserver")
        self._kill("etcd")

    def start_control_plane(self) -> None:
        """Start etcd again, with what it had stored, and the API server."""
        self._start_again("etcd", etcd_argv(self._config.control_plane))
        self.start_apiserver()

    def _kill(self, name: str) -> None:
        program = str(self._config.control_plane.binaries.path(name))
        running = {p for p in marked(self._instance.folder) if p.command().startswith(program)}
        if not running:
            raise ClusterError(f"no {name} runs")
        if left := stop(running):
            raise ClusterError(f"{name} survived SIGKILL: {left}")

    def _start_again(self, name: str, argv: Sequence[str | Path]) -> None:
        """Start a component in the node's namespaces."""
        init = self._instance.processes["node-init"]
        spawn(
            ["nsenter", "--target", str(init.pid), "--mount", "--net", "--pid", *argv],
            log=self._instance.logs / f"{name}.log",
            marker=self._instance.folder,
        )

    def wait_until_ready(self) -> None:
        """Wait until pods can run: the images' base is there, and so is the default account."""

        def dead() -> str | None:
            if self._instance.processes["namespaces"].alive():
                return None
            return f"ended: {last_words(self._instance.logs / 'node.log')}"

        wait_until(
            (self._config.folder / "started").exists,
            what="node",
            deadline_s=START_DEADLINE_S,
            failed=dead,
        )
        if SANDBOX_IMAGE not in self.images():
            self.load_image(busybox_archive())
        wait_until(self._ready, what="Node object", deadline_s=START_DEADLINE_S, failed=dead)

    def _ready(self) -> bool:
        try:
            self.client.get("/api/v1/namespaces/default/serviceaccounts/default")
        except OSError:
            return False
        return self.is_ready()


def require() -> None:
    """Raise ClusterUnavailableError unless all that a node is made of is on this machine."""
    if os.geteuid() != 0:
        raise ClusterUnavailableError("a single-node cluster needs root (or Docker and kind)")
    packages.check(packages.CONTROL_PLANE | packages.NODE)
    binaries.find(binaries.PODS)
    binaries.kubectl()
    if not has_busybox():
        raise ClusterUnavailableError(
            "no sandbox image on this machine yet: `make prepare` makes it"
        )


def start(name: str, *, owner: ProcessId | None) -> Node:
    """Start a node that runs until it is removed by name, or its owner ends.

    After a failure, the caller removes what exists.
    """
    require()
    instance = create(name, "node", owner=owner, ports=0)
    config = node_config(instance)
    make_cgroups(config.cgroup)
    make_mount_points(instance)
    init = _start_namespaces(instance)
    _hand_over_interface(config, init)
    node = Node(instance)
    node.wait_until_ready()
    return node


def make_mount_points(instance: Instance) -> None:
    """Create the folders that the node covers with its own, where the machine lacks them."""
    with registry():
        for path in MOUNT_POINTS:
            if not path.exists():
                instance.made_folders.append(str(path))
                instance.save()
                path.mkdir(parents=True)


def _start_namespaces(instance: Instance) -> ProcessId:
    """Start the first process of the node's namespaces, and return it as this machine sees it."""
    unshare = spawn(
        [
            *("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"),
            *(sys.executable, "-m", "tests.cluster.node_init", instance.folder),
        ],
        log=instance.logs / "node.log",
        marker=instance.folder,
        env={"PYTHONPATH": str(REPOSITORY)},
    )
    outer = ProcessId.of(unshare)
    if outer is None:
        raise ClusterError(f"unshare: {last_words(instance.logs / 'node.log')}")
    instance.record("namespaces", outer)
    children = Path(f"/proc/{unshare}/task/{unshare}/children")
    end = time.monotonic() + START_DEADLINE_S
    while outer.alive() and time.monotonic() < end:
        with suppress(FileNotFoundError):  # it ends just now
            for number in children.read_text().split():
                if inner := ProcessId.of(int(number)):
                    instance.record("node-init", inner)
                    return inner
        time.sleep(0.01)
    raise ClusterError(f"no namespaces: {last_words(instance.logs / 'node.log')}")


def _hand_over_interface(config: NodeConfig, init: ProcessId) -> None:
    """Connect this machine to the pods' network by a pair of interfaces, one on each side."""
    host = config.host_interface
    for words in (
        f"link add {host} type veth peer name uplink netns {init.pid}",
        f"address add {config.host_address}/24 dev {host}",
        f"link set {host} up",
    ):
        result = subprocess.run(["ip", *words.split()], capture_output=True, text=True, check=False)
        if result.returncode:
            raise ClusterError(f"ip {words}: {result.stderr.strip()}")
