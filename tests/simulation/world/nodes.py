"""Nodes as the API server has them: their kinds, and what they report."""

from collections.abc import Mapping
from typing import Any, Final

from ddp_operator.api.constants import GKE_TOPOLOGY_LABELS
from ddp_operator.ports import Manifest

from tests.simulation.world.resources import GPU

HOSTNAME: Final = "kubernetes.io/hostname"
ACCELERATOR: Final = "cloud.google.com/gke-accelerator"
GPU_TYPE: Final = "nvidia-l4"
GPUS_PER_NODE: Final = 1
GPU_TAINT: Final = {"key": GPU, "value": "present", "effect": "NoSchedule"}
"""GKE puts it on all nodes with GPUs."""

_OFFERED: Final = {
    "cpu": "96",
    "memory": "1024Gi",
    "ephemeral-storage": "1Ti",
    "pods": "110",
}
_TAINT = "taint"
WELL: Final = "well"
LEAVING: Final[Mapping[str, Mapping[str, str]]] = {
    "impending termination": {_TAINT: "cloud.google.com/impending-node-termination"},
    "removed by the autoscaler": {_TAINT: "ToBeDeletedByClusterAutoscaler"},
    "drain": {"condition": "DrainInProgress"},
    "maintenance planned": {"condition": "MaintenancePlanned"},
    "maintenance": {"condition": "MaintenanceInProgress"},
    "shutdown": {"condition": "GracefulNodeShutdownInProgress"},
    "maintenance by GKE": {"label": "cloud.google.com/active-node-maintenance"},
}
"""Signals that a node is about to go: of clouds, and of Kubernetes 1.37."""
_ONGOING: Final = "ONGOING"
_SCHEDULED: Final = "cloud.google.com/scheduled-maintenance-time"
BAD: Final[Mapping[str, Mapping[str, str]]] = {"Xid": {"condition": "XidCriticalError"}}
UNREACHABLE: Final = "unreachable"
"""The node lifecycle controller has not heard of its kubelet for 40 s (50 s from 1.29 on)."""


def node(letter: str, number: int, *, gpus: int = 0, taint: bool = True) -> Manifest:
    """Return a node with these GPUs. Neighbours by name are far from each other in the network."""
    places = {"block": "12"[number % 2], "sub-block": "12"[number // 2 % 2], "host": letter}
    labels = {label: places[level] for level, label in GKE_TOPOLOGY_LABELS.items()}
    name = f"node-{letter}"
    labels[HOSTNAME] = name
    allocatable: dict[str, str] = dict(_OFFERED)
    if gpus:
        labels[ACCELERATOR] = GPU_TYPE
        allocatable[GPU] = str(gpus)
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": [GPU_TAINT] if gpus and taint else []},
        "status": {
            "nodeInfo": {"bootID": letter},
            "conditions": [_condition("Ready", "True")],
            "allocatable": allocatable,
        },
    }


def name_of(node: Manifest) -> str:
    """Return a node's name."""
    name: str = node["metadata"]["name"]
    return name


def reporting(node: Manifest, what: str) -> Manifest:
    """Return the same node, which reports only this."""
    taints = [taint for taint in node["spec"].get("taints") or () if taint == GPU_TAINT]
    conditions = [_condition("Ready", "Unknown" if what == UNREACHABLE else "True")]
    labels = {k: v for k, v in node["metadata"]["labels"].items() if v != _ONGOING}
    if what == UNREACHABLE:
        key = "node.kubernetes.io/unreachable"
        taints += [{"key": key, "effect": effect} for effect in ("NoSchedule", "NoExecute")]
    signal = {**LEAVING, **BAD}.get(what, {})
    if _TAINT in signal:
        taints.append({"key": signal[_TAINT], "effect": "NoSchedule"})
    elif "label" in signal:
        labels[signal["label"]] = _ONGOING
    elif signal:
        conditions.append(_condition(signal["condition"], "True"))
    status = {**node["status"], "conditions": conditions}
    metadata = {**node["metadata"], "labels": labels}
    return {**node, "metadata": metadata, "spec": {"taints": taints}, "status": status}


def maintained_at(node: Manifest, seconds: int) -> Manifest:
    """Return the same node, for which GKE has scheduled a maintenance at this time."""
    labels = {**node["metadata"]["labels"], _SCHEDULED: str(seconds)}
    return {**node, "metadata": {**node["metadata"], "labels": labels}}


def rebooted(node: Manifest) -> Manifest:
    """Return the same node after another start of its machine."""
    info = {"bootID": boot_id_of(node) + "+"}
    return {**node, "status": {**node["status"], "nodeInfo": info}}


def boot_id_of(node: Manifest) -> str:
    """Return the identifier of its machine's last start."""
    boot_id: str = node["status"]["nodeInfo"]["bootID"]
    return boot_id


def is_leaving(node: Manifest) -> bool:
    """Return whether it reports that it is about to go."""
    keys = {taint["key"] for taint in node["spec"].get("taints") or ()}
    types = {one["type"] for one in node["status"]["conditions"] if one["status"] == "True"}
    labels = node["metadata"]["labels"]
    return _SCHEDULED in labels or any(
        signal.get(_TAINT) in keys
        or signal.get("condition") in types
        or labels.get(signal.get("label")) == _ONGOING
        for signal in LEAVING.values()
    )


def is_bad(node: Manifest) -> bool:
    """Return whether it reports that a device of it is broken."""
    types = {one["type"] for one in node["status"]["conditions"] if one["status"] == "True"}
    return any(signal["condition"] in types for signal in BAD.values())


def is_unreachable(node: Manifest) -> bool:
    """Return whether its kubelet does not answer."""
    return any(one == _condition("Ready", "Unknown") for one in node["status"]["conditions"])


def _condition(type_: str, status: str) -> dict[str, Any]:
    return {"type": type_, "status": status}
