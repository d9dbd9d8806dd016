"""Configuration of containerd, CNI and the kubelet of the single node. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.control_plane_config import ControlPlaneConfig

SANDBOX_IMAGE = "docker.io/library/ddp-busybox:dev"
BRIDGE = "cni0"
CNI_BINARIES = Path("/usr/lib/cni")


@dataclass(frozen=True)
class NodeConfig:
    """One single-node cluster; the control plane runs in the node's own namespaces."""

    control_plane: ControlPlaneConfig
    # The third number of 10.<subnet>.0.0/24, the network of pods, node and host.
    subnet: int
    # containerd's images, kept from one cluster to the next.
    image_root: Path
    # The cgroup below which all pods live, in every hierarchy.
    cgroup: str
    # Nodes of one cluster have the same address.
    kubelet_port: int = 10250

    @property
    def folder(self) -> Path:
        """The instance's folder."""
        return self.control_plane.folder

    @property
    def gateway(self) -> str:
        """The node's address, where API server, kubelet and DNS listen."""
        return f"10.{self.subnet}.0.1"

    @property
    def host_address(self) -> str:
        """This machine's address in the pods' network."""
        return f"10.{self.subnet}.0.2"

    @property
    def host_interface(self) -> str:
        """The one network interface that the cluster adds to this machine."""
        return f"ddp-{self.subnet}"

    @property
    def containerd_socket(self) -> Path:
        """The socket of the node's own containerd, usable from this machine."""
        return self.folder / "containerd.sock"


def containerd_toml(config: NodeConfig, *, with_cri: bool) -> str:
    """Return containerd's configuration.

    Without CRI it serves to clear containers away that a killed cluster has left in its store.
    """
    disabled = "" if with_cri else '"io.containerd.grpc.v1.cri"'
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""\
version = 2
root = "{config.image_root}"
state = "/run/containerd/state"
disabled_plugins = [{disabled}]

[grpc]
  address = "{config.containerd_socket}"

[{cri}]
  sandbox_image = "{SANDBOX_IMAGE}"
  # Without CAP_SYS_RESOURCE a lower score than one's own is refused, and every sandbox with it.
  restrict_oom_score_adj = true

[{cri}.cni]
  bin_dir = "{CNI_BINARIES}"
  conf_dir = "{config.folder / "cni"}"

[{cri}.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[{cri}.containerd.runtimes.runc.options]
  SystemdCgroup = false
"""


def cni_conflist(config: NodeConfig) -> str:
    """Return the pod network: a bridge that is also the node's and this machine's network."""
    bridge = {
        "type": "bridge",
        "bridge": BRIDGE,
        "isGateway": True,
        "ipam": {
            "type": "host-local",
            "dataDir": str(config.folder / "cni-addresses"),
            "ranges": [
                [
                    {
                        "subnet": f"10.{config.subnet}.0.0/24",
                        "rangeStart": f"10.{config.subnet}.0.10",
                        "gateway": config.gateway,
                    }
                ]
            ],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    document = {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge, portmap]}
    return json.dumps(document, indent=1)


def kubelet_config(config: NodeConfig) -> str:
    """Return the kubelet's configuration file."""
    document = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        # The node's network namespace is its own: nobody else listens or looks there.
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "port": config.kubelet_port,
        "readOnlyPort": 0,
        "healthzPort": 0,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": config.cgroup,
        "failCgroupV1": False,
        "containerRuntimeEndpoint": f"unix://{config.containerd_socket}",
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "makeIPTablesUtilChains": False,
        "clusterDNS": [config.gateway],
        "clusterDomain": "cluster.local",
        "resolvConf": str(config.folder / "resolv.conf"),
        "volumePluginDir": str(config.folder / "volume-plugins"),
        # A test machine's disk may be nearly full, and images have no registry to come back from.
        "evictionHard": {"memory.available": "1Mi", "nodefs.available": "1Mi"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "maxPods": 200,
        "kubeAPIQPS": 200,
        "kubeAPIBurst": 400,
        "eventRecordQPS": 100,
        "eventBurst": 200,
        # Looks often, so that a new node is ready at once, but reports only what has changed.
        "nodeStatusUpdateFrequency": "1s",
        "nodeStatusReportFrequency": "1m",
        # Caches start with a wait of a second for every new pod.
        "configMapAndSecretChangeDetectionStrategy": "Get",
    }
    return json.dumps(document, indent=1)


def kubelet_argv(config: NodeConfig) -> list[str | Path]:
    """Return the kubelet's command line: only what its file cannot contain."""
    control_plane = config.control_plane
    return [
        control_plane.binaries.path("kubelet"),
        f"--config={config.folder / 'kubelet.json'}",
        f"--kubeconfig={control_plane.kubeconfig('kubelet')}",
        f"--cert-dir={config.folder / 'kubelet-certs'}",
        f"--hostname-override={control_plane.node_name}",
        f"--node-ip={config.gateway}",
    ]
