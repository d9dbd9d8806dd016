"""Nodes as `ports.Node`, for a reflector to keep."""

from ddp_operator.api.node_signals import Rules, signals
from ddp_operator.ports import Key, Manifest, Node

ALL_NODES = Key("", "")
"""The group in which a reflector keeps all nodes."""

_UNREACHABLE = "node.kubernetes.io/unreachable"


def node_of(manifest: Manifest, rules: Rules) -> Node:
    """Project a node: its labels, and the result of its signals."""
    metadata, said = manifest["metadata"], signals(manifest, rules)
    return Node(
        name=metadata["name"],
        labels=dict(metadata.get("labels") or {}),
        boot_id=said.boot_id,
        bad=said.bad,
        leaving=said.leaving,
        ends_at=said.ends_at,
        maintenance_at=said.maintenance_at,
        unready=_is_unready(manifest),
    )


def _is_unready(manifest: Manifest) -> bool:
    """Return whether the node is not ready. Before its kubelet's first report it is new, not
    unready.
    """
    conditions = (manifest.get("status") or {}).get("conditions") or ()
    taints = manifest["spec"].get("taints") or () if manifest.get("spec") else ()
    return any(taint.get("key") == _UNREACHABLE for taint in taints) or any(
        each.get("type") == "Ready" and each.get("status") != "True" for each in conditions
    )
