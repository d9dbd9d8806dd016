"""Options of etcd, the API server and the controllers. Pure except for key files."""

from __future__ import annotations

import base64
import json
import secrets
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.preparation.binaries import KubeBinaries

SERVICE_CIDR = "10.96.0.0/16"
# The first address of SERVICE_CIDR is the API server's Service in every Kubernetes.
KUBERNETES_SERVICE_IP = "10.96.0.1"

_FIRST_WITH_POD_GROUPS = 37
"""The minor version whose PodGroups the operator uses; earlier ones are alpha."""

# Test users and their groups. `operator` has no rights of its own, for tests that grant some.
USERS: Mapping[str, tuple[str, str]] = {
    "admin": ("admin", "system:masters"),
    "operator": ("operator", ""),
    # All controllers under one name with all rights: their per-controller service accounts would
    # be created one by one at every start.
    "controller-manager": ("system:kube-controller-manager", "system:masters"),
    "scheduler": ("system:kube-scheduler", ""),
}


@dataclass(frozen=True)
class ControlPlaneConfig:
    """Where one control plane listens and keeps its files."""

    binaries: KubeBinaries
    folder: Path
    data_dir: Path
    # The address that clients use; bind_address may be wider.
    address: str
    bind_address: str
    port: int
    etcd_port: int
    etcd_peer_port: int
    # Whether real pods run here: they need service accounts, and the nodes are really watched.
    has_nodes: bool
    node_name: str = "node"
    # Whether pods of nodes that do not exist are collected where no real pods run.
    collects_pods: bool = False
    # Whether a watch may begin with a list. With an old etcd, the API server refuses such a watch.
    watch_lists: bool = True

    @property
    def server(self) -> str:
        """The API server's URL."""
        return f"https://{self.address}:{self.port}"

    @property
    def certificate(self) -> Path:
        """The API server's own certificate, which it makes at its first start; also its CA."""
        return self.folder / "certs/apiserver.crt"

    def kubeconfig(self, user: str) -> Path:
        """Return the path of ``user``'s kubeconfig."""
        return self.folder / f"{user}.kubeconfig"


def write_credentials(config: ControlPlaneConfig) -> None:
    """Make the tokens of all users and the key that signs service account tokens."""
    users = {
        **USERS,
        "kubelet": (f"system:node:{config.node_name}", "system:nodes"),
    }
    tokens = {user: secrets.token_hex(16) for user in users}
    lines = [f'{tokens[user]},{name},{user},"{group}"' for user, (name, group) in users.items()]
    path = config.folder / "tokens.csv"
    path.touch(mode=0o600)
    path.write_text("\n".join(lines) + "\n")
    (config.folder / "tokens.json").touch(mode=0o600)
    (config.folder / "tokens.json").write_text(json.dumps(tokens))
    key = config.folder / "service-account.key"
    _openssl("genrsa", "-out", str(key), "2048")
    _openssl("rsa", "-in", str(key), "-pubout", "-out", str(key.with_suffix(".pub")))


def tokens(folder: Path) -> dict[str, str]:
    """Return the token of every user of the control plane in ``folder``."""
    found: dict[str, str] = json.loads((folder / "tokens.json").read_text())
    return found


def write_kubeconfigs(config: ControlPlaneConfig) -> None:
    """Write a kubeconfig per user; the API server's certificate has to exist by now."""
    for user, token in tokens(config.folder).items():
        _write_kubeconfig(config, user, token)


def _write_kubeconfig(config: ControlPlaneConfig, user: str, token: str) -> None:
    authority = base64.b64encode(config.certificate.read_bytes()).decode()
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "test",
                "cluster": {"server": config.server, "certificate-authority-data": authority},
            }
        ],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
        "current-context": "test",
    }
    path = config.kubeconfig(user)
    path.touch(mode=0o600)
    path.write_text(json.dumps(document, indent=1))  # JSON is YAML


def etcd_argv(config: ControlPlaneConfig) -> list[str | Path]:
    """Return etcd's command line: in memory, and without waiting for a disk."""
    client = f"http://127.0.0.1:{config.etcd_port}"
    peer = f"http://127.0.0.1:{config.etcd_peer_port}"
    return [
        config.binaries.path("etcd"),
        f"--data-dir={config.data_dir}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
        "--snapshot-count=100000",
        "--quota-backend-bytes=2147483648",
    ]


def _feature_gates(config: ControlPlaneConfig) -> list[str]:
    """Return the flag for features: PodGroups of Kubernetes itself, beta since 1.37, are off by
    default, but the operator uses them.
    """
    gates = ["GenericWorkload=true"] if _has_pod_groups(config) else []
    gates += [] if config.watch_lists else ["WatchList=false"]
    return [f"--feature-gates={','.join(gates)}"] if gates else []


def _has_pod_groups(config: ControlPlaneConfig) -> bool:
    return config.binaries.minor_version() >= _FIRST_WITH_POD_GROUPS


def apiserver_argv(config: ControlPlaneConfig) -> list[str | Path]:
    """Return the API server's command line.

    Its own limits are lifted (in-flight requests, priority and fairness), so that a benchmark
    measures the server's work and not its limits.
    """
    key = config.folder / "service-account.key"
    argv: list[str | Path] = [
        config.binaries.path("kube-apiserver"),
        f"--etcd-servers=http://127.0.0.1:{config.etcd_port}",
        f"--bind-address={config.bind_address}",
        f"--secure-port={config.port}",
        f"--cert-dir={config.certificate.parent}",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
        f"--token-auth-file={config.folder / 'tokens.csv'}",
        "--authorization-mode=Node,RBAC",
        f"--service-account-key-file={key.with_suffix('.pub')}",
        f"--service-account-signing-key-file={key}",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--enable-priority-and-fairness=false",
        "--max-requests-inflight=4000",
        "--max-mutating-requests-inflight=2000",
        "--kubelet-preferred-address-types=InternalIP",
        "--allow-privileged=true",
        "--profiling=false",
        *_feature_gates(config),
    ]
    if _has_pod_groups(config):
        argv.append("--runtime-config=scheduling.k8s.io/v1beta1=true")
    if config.has_nodes:
        argv.append(f"--advertise-address={config.address}")
    else:
        argv += [
            # The server refuses to advertise loopback; nobody connects to this one (TEST-NET-1),
            # and without a reconciler it is not even published.
            "--advertise-address=192.0.2.1",
            "--endpoint-reconciler-type=none",
            # No pod runs here, so none needs a token, or has to wait for its namespace's account.
            "--disable-admission-plugins=ServiceAccount",
        ]
    return argv


def controller_manager_argv(config: ControlPlaneConfig) -> list[str | Path]:
    """Return the controller manager's command line, with client limits that do not slow tests."""
    argv: list[str | Path] = [
        config.binaries.path("kube-controller-manager"),
        f"--kubeconfig={config.kubeconfig('controller-manager')}",
        f"--service-account-private-key-file={config.folder / 'service-account.key'}",
        f"--root-ca-file={config.certificate}",
        "--leader-elect=false",
        "--secure-port=0",
        "--kube-api-qps=1000",
        "--kube-api-burst=2000",
        "--concurrent-endpoint-syncs=20",
        "--concurrent-gc-syncs=40",
        *_feature_gates(config),
    ]
    if not config.has_nodes:
        # Tests play the kubelet there: a node that nobody renews must not be declared lost, nor
        # a pod collected because its node is made up.
        collector = "" if config.collects_pods else ",-podgc"
        argv.append(f"--controllers=*,-nodelifecycle{collector}")
    return argv


def scheduler_argv(config: ControlPlaneConfig) -> list[str | Path]:
    """Return the scheduler's command line."""
    return [
        config.binaries.path("kube-scheduler"),
        f"--kubeconfig={config.kubeconfig('scheduler')}",
        "--leader-elect=false",
        "--secure-port=0",
        "--kube-api-qps=1000",
        "--kube-api-burst=2000",
        *_feature_gates(config),
    ]


def _openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)
