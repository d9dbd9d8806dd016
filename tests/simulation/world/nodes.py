"""Nodes as the API server has them, what they say of themselves, and where pods may be bound."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ddp_operator.api.constants import GKE_TOPOLOGY_LABELS
from ddp_operator.ports import Manifest

_LETTERS: Final = "abcdefgh"
"""Enough nodes that a job may avoid two; neighbours by name stand far from each other."""

_TAINT = "taint"
WELL: Final = "well"
LEAVING: Final[Mapping[str, Mapping[str, str]]] = {
    "impending termination": {_TAINT: "cloud.google.com/impending-node-termination"},
    "removed by the autoscaler": {_TAINT: "ToBeDeletedByClusterAutoscaler"},
    "drain": {"condition": "DrainInProgress"},
    "maintenance planned": {"condition": "MaintenancePlanned"},
    "maintenance": {"condition": "MaintenanceInProgress"},
    "shutdown": {"condition": "GracefulNodeShutdownInProgress"},
}
"""What says that a node is about to go: of clouds, and of Kubernetes 1.37."""
BAD: Final[Mapping[str, Mapping[str, str]]] = {"Xid": {"condition": "XidCriticalError"}}
UNREACHABLE: Final = "unreachable"
"""The node lifecycle controller has not heard of its kubelet for 40 s (50 s from 1.29 on)."""


def _node(letter: str, number: int) -> Manifest:
    places = {"block": "12"[number % 2], "sub-block": "12"[number // 2 % 2], "host": letter}
    labels = {label: places[level] for level, label in GKE_TOPOLOGY_LABELS.items()}
    name = f"node-{letter}"
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {},
        "status": {"nodeInfo": {"bootID": letter}, "conditions": [_condition("Ready", "True")]},
    }


def reporting(node: Manifest, what: str) -> Manifest:
    """The same node, which says this and nothing else."""
    taints: list[Manifest] = []
    conditions = [_condition("Ready", "Unknown" if what == UNREACHABLE else "True")]
    if what == UNREACHABLE:
        key = "node.kubernetes.io/unreachable"
        taints = [{"key": key, "effect": effect} for effect in ("NoSchedule", "NoExecute")]
    signal = {**LEAVING, **BAD}.get(what, {})
    if _TAINT in signal:
        taints = [{"key": signal[_TAINT], "effect": "NoSchedule"}]
    elif signal:
        conditions.append(_condition(signal["condition"], "True"))
    status = {**node["status"], "conditions": conditions}
    return {**node, "spec": {"taints": taints}, "status": status}


def rebooted(node: Manifest) -> Manifest:
    """The same node after another start of its machine."""
    boot_id = node["status"]["nodeInfo"]["bootID"] + "+"
    return {**node, "status": {**node["status"], "nodeInfo": {"bootID": boot_id}}}


def boot_id_of(node: Manifest) -> str:
    """The start of its machine."""
    boot_id: str = node["status"]["nodeInfo"]["bootID"]
    return boot_id


def is_leaving(node: Manifest) -> bool:
    """Whether it says that it is about to go."""
    keys = {taint["key"] for taint in node["spec"].get("taints") or ()}
    types = {one["type"] for one in node["status"]["conditions"] if one["status"] == "True"}
    return any(signal.get(_TAINT) in keys or signal.get("condition") in types for signal in _GOING)


def is_well(node: Manifest) -> bool:
    """Whether it says nothing that would keep pods off it."""
    well = [_condition("Ready", "True")]
    return not node["spec"].get("taints") and node["status"]["conditions"] == well


def is_unreachable(node: Manifest) -> bool:
    """Whether nobody hears of its kubelet."""
    return any(one == _condition("Ready", "Unknown") for one in node["status"]["conditions"])


def fitting(pod: Manifest, nodes: Iterable[Manifest]) -> Sequence[str]:
    """The names of the nodes that the scheduler may bind a pod to; of these only those that the
    pod prefers, where there are any.
    """
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    preferred = affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
    disliked = set().union(*(_not_in(one["preference"]) for one in preferred))
    barred = avoided(pod)
    names = [
        node["metadata"]["name"]
        for node in nodes
        if (tolerates_everything(pod) or not node["spec"].get("taints"))
        and node["metadata"]["name"] not in barred
    ]
    return [name for name in names if name not in disliked] or names


def avoided(pod: Manifest) -> set[str]:
    """The names of the nodes that a pod may not be bound to, as all terms of its affinity say."""
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    return set.intersection(*map(_not_in, required.get("nodeSelectorTerms") or [{}]))


def _not_in(term: Manifest) -> set[str]:
    fields = term.get("matchFields") or ()
    return {value for field in fields for value in field["values"]}


def tolerates_everything(pod: Manifest) -> bool:
    """As pods do that are to run on nodes with GPUs: nothing evicts them, and they may be bound to
    a node that nobody hears of.
    """
    tolerations = pod["spec"].get("tolerations") or ()
    return any(one.get("operator") == "Exists" and not one.get("key") for one in tolerations)


def _condition(type_: str, status: str) -> dict[str, Any]:
    return {"type": type_, "status": status}


_GOING: Final = tuple(LEAVING.values())
NODES: Final = {f"node-{letter}": _node(letter, n) for n, letter in enumerate(_LETTERS)}
