"""A second node beside the cluster's first one, for what takes two: real pods on another node.

It has a kubelet, a containerd, a file system of mounts and a cgroup of its own. It shares the first
node's network, so all pods still reach each other, and its kubelet listens on another port.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from tests.cluster.cache import cache_dir
from tests.cluster.cgroups import make_cgroups, remove_cgroups
from tests.cluster.client import wait_until
from tests.cluster.components import START_DEADLINE_S, Components, last_words
from tests.cluster.errors import ClusterError
from tests.cluster.machine import Machine
from tests.cluster.node import REPOSITORY, Node, node_config
from tests.cluster.node_config import SANDBOX_IMAGE, NodeConfig, kubelet_argv
from tests.cluster.node_init import (
    arrange_mounts,
    clear_old_containers,
    wait_for_containerd,
    write_files,
)
from tests.cluster.preparation.busybox import busybox_archive
from tests.cluster.processes import marked, stop
from tests.cluster.state import Instance

_SHARED = {
    "certs": "certs",
    "tokens.json": "tokens.json",
    "cni-addresses": "cni-addresses",  # no two pods may have the same address
    "kubelet.kubeconfig": "admin.kubeconfig",  # only the first node has a user of its own
}
"""Files of the second node that are links to the first one's."""


def second(node: Node) -> Machine:
    """Return the second node, which need not run yet."""
    return Machine(_config(node.instance))


@contextmanager
def second_node(node: Node) -> Iterator[Machine]:
    """Run a second node. The caller removes its pods before the end."""
    config = _config(node.instance)
    machine = Machine(config)
    log = node.logs / "second-node.log"
    try:
        _make_folder(config, node)
        make_cgroups(config.cgroup)
        _start(node, log)
        if SANDBOX_IMAGE not in machine.images():
            machine.load_image(busybox_archive())
        wait_until(
            machine.is_ready,
            what="second node",
            deadline_s=START_DEADLINE_S,
            failed=lambda: None if marked(config.folder) else f"ended: {last_words(log)}",
        )
        yield machine
    finally:
        with suppress(urllib.error.HTTPError):
            machine.client.request("DELETE", f"/api/v1/nodes/{machine.node_name}")
        if left := stop(marked(config.folder)):
            raise ClusterError(f"{machine.node_name}: {left} survived SIGKILL")
        remove_cgroups(config.cgroup)
        shutil.rmtree(config.folder)


def _config(instance: Instance) -> NodeConfig:
    first = node_config(instance)
    plane = replace(
        first.control_plane,
        folder=first.folder / "second",
        node_name=f"{first.control_plane.node_name}-2",
    )
    return replace(
        first,
        control_plane=plane,
        image_root=cache_dir("containerd", f"{instance.image_store}-second"),
        cgroup=f"{first.cgroup}/second",
        kubelet_port=first.kubelet_port + 100,
    )


def _make_folder(config: NodeConfig, node: Node) -> None:
    (config.folder / "logs").mkdir(parents=True)
    for name, target in _SHARED.items():
        (config.folder / name).symlink_to(node.instance.folder / target)


def _start(node: Node, log: Path) -> None:
    """Start the node's processes in the first one's namespaces, but with mounts of their own."""
    init = node.instance.processes["node-init"]
    words = [
        *("nsenter", "--target", str(init.pid), "--mount", "--net", "--pid"),
        *("unshare", "--mount", "env", f"PYTHONPATH={REPOSITORY}"),
        *(sys.executable, "-m", "tests.cluster.second_node", str(node.instance.folder)),
    ]
    with log.open("ab") as output:
        result = subprocess.run(
            words, stdout=output, stderr=output, check=False, timeout=START_DEADLINE_S
        )
    if result.returncode:
        raise ClusterError(f"second node: {last_words(log)}")


def main() -> None:
    """Arrange and start the node in its namespaces; its processes stay."""
    config = _config(Instance.load(Path(sys.argv[1])))
    components = Components(config.folder, record=lambda _name, _process: None)
    arrange_mounts(config)
    write_files(config)
    clear_old_containers(components, config)
    components.spawn("containerd", ["containerd", "--config", config.folder / "containerd.toml"])
    wait_for_containerd(components, config)
    components.spawn("kubelet", kubelet_argv(config))


if __name__ == "__main__":
    main()
