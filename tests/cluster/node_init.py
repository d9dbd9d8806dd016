"""The first process of the node's own namespaces: it arranges them and starts the node's parts.

Run by `node.start` under unshare(1). Everything that a node does to a machine (mounts, bridges,
addresses, processes) happens in mount, network and process namespaces that end with this process,
so that the kernel itself guarantees that nothing is left.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.cluster.client import wait_until
from tests.cluster.components import (
    START_DEADLINE_S,
    Components,
    begin_control_plane,
    finish_control_plane,
)
from tests.cluster.control_plane_config import KUBERNETES_SERVICE_IP
from tests.cluster.node import node_config
from tests.cluster.node_config import (
    BRIDGE,
    NodeConfig,
    cni_conflist,
    containerd_toml,
    kubelet_argv,
    kubelet_config,
)
from tests.cluster.processes import ProcessId, stop
from tests.cluster.state import Instance

# What the kubelet would write into the host's kernel settings if it found other values there.
KERNEL_SETTINGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


def main() -> None:
    """Arrange, start, then reap orphans until killed."""
    config = node_config(Instance.load(Path(sys.argv[1])))
    arrange_mounts(config)
    arrange_network(config)
    components = Components(config.folder, record=lambda _name, _process: None)
    write_files(config)
    begin_control_plane(components, config.control_plane)
    clear_old_containers(components, config)
    components.spawn("containerd", ["containerd", "--config", config.folder / "containerd.toml"])
    finish_control_plane(components, config.control_plane, controllers=True, scheduler=True)
    kubeconfig = config.control_plane.kubeconfig("admin")
    components.spawn("dns", [sys.executable, "-m", "tests.cluster.dns", config.gateway, kubeconfig])
    wait_for_containerd(components, config)
    components.spawn("kubelet", kubelet_argv(config))
    (config.folder / "started").touch()
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(1)


def arrange_mounts(config: NodeConfig) -> None:
    """Give the node its own /run and /var/log, and kernel settings that only it sees."""
    # Volumes with mount propagation need a shared tree; no other process shares it.
    run("mount", "--make-rshared", "/")
    run("mount", "-t", "tmpfs", "-o", "mode=755", "node-run", "/run")
    for target in ("/var/log", "/var/lib/kubelet", "/var/lib/cni"):
        own = config.folder / target.strip("/").replace("/", "-")
        own.mkdir()
        run("mount", "--bind", str(own), target)
    settings = config.folder / "kernel-settings"
    settings.mkdir()
    for name, value in KERNEL_SETTINGS.items():
        if not Path("/proc/sys", name).exists():  # a kernel built without it
            continue
        stand_in = settings / name.replace("/", ".")
        stand_in.write_text(value + "\n")
        run("mount", "--bind", str(stand_in), f"/proc/sys/{name}")


def arrange_network(config: NodeConfig) -> None:
    """Build the pods' bridge, and connect it to the interface that the host hands over."""
    run("ip", "link", "set", "lo", "up")
    # The API server listens on all addresses of the node: with its Service's address among them,
    # pods reach it there without any translation.
    run("ip", "address", "add", f"{KUBERNETES_SERVICE_IP}/32", "dev", "lo")
    # A fixed hardware address: a bridge would take over its ports', which come and go.
    hardware = f"02:00:0a:{config.subnet:02x}:00:01"
    run("ip", "link", "add", BRIDGE, "address", hardware, "type", "bridge")
    run("ip", "address", "add", f"{config.gateway}/24", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    wait_until(
        lambda: (
            subprocess.run(
                ["ip", "link", "show", "uplink"], capture_output=True, check=False
            ).returncode
            == 0
        ),
        what="network interface from the host",
        deadline_s=START_DEADLINE_S,
    )
    run("ip", "link", "set", "uplink", "master", BRIDGE, "up")


def write_files(config: NodeConfig) -> None:
    """Write the configuration of containerd, CNI and kubelet."""
    (config.folder / "cni").mkdir()
    (config.folder / "cni/pods.conflist").write_text(cni_conflist(config))
    (config.folder / "containerd.toml").write_text(containerd_toml(config, with_cri=True))
    (config.folder / "containerd-store.toml").write_text(containerd_toml(config, with_cri=False))
    (config.folder / "kubelet.json").write_text(kubelet_config(config))
    (config.folder / "resolv.conf").write_text(f"nameserver {config.gateway}\n")


def wait_for_containerd(components: Components, config: NodeConfig) -> None:
    """Wait until containerd answers."""
    wait_until(
        lambda: (
            subprocess.run(
                ["ctr", "--address", config.containerd_socket, "version"],
                capture_output=True,
                check=False,
            ).returncode
            == 0
        ),
        what="containerd",
        deadline_s=START_DEADLINE_S,
        failed=lambda: components.death("containerd"),
    )


def clear_old_containers(components: Components, config: NodeConfig) -> None:
    """Take containers of an earlier cluster out of the store, which is kept for its images."""
    if not (config.image_root / "io.containerd.metadata.v1.bolt/meta.db").exists():
        return
    components.spawn(
        "containerd", ["containerd", "--config", config.folder / "containerd-store.toml"]
    )
    wait_for_containerd(components, config)
    ctr = ["ctr", "--address", str(config.containerd_socket), "-n", "k8s.io"]
    listed = subprocess.run(
        [*ctr, "containers", "ls", "-q"], capture_output=True, text=True, check=True
    )
    if names := listed.stdout.split():
        run(*ctr, "containers", "rm", *names)
    containerd: ProcessId = components.process("containerd")
    stop([containerd])
    for folder in ("sandboxes", "containers"):
        store = config.image_root / "io.containerd.grpc.v1.cri" / folder
        if store.is_dir():
            run("rm", "-rf", str(store))


def run(*words: str) -> None:
    """Run a command that has to succeed; its output goes to this process's log."""
    subprocess.run(words, check=True)


if __name__ == "__main__":
    main()
