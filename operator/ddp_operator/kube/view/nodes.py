"""Nodes as `ports.Node`, for a reflector to keep."""

from ddp_operator.ports import Key, Manifest, Node

ALL_NODES = Key("", "")
"""The group that a reflector keeps all nodes in."""

_KEEPS_AWAY = ("NoSchedule", "NoExecute")


def node_of(manifest: Manifest) -> Node:
    """Take from a node what tells whether a pod may run on it.

    A cordon's own taint is left out: `schedulable` says it.
    """
    metadata, spec = manifest["metadata"], manifest.get("spec") or {}
    taints = spec.get("taints") or ()
    return Node(
        name=metadata["name"],
        labels=dict(metadata.get("labels") or {}),
        schedulable=not spec.get("unschedulable", False),
        taints=tuple(
            {name: taint.get(name) or "" for name in ("key", "value", "effect")}
            for taint in taints
            if taint.get("effect") in _KEEPS_AWAY
            and taint.get("key") != "node.kubernetes.io/unschedulable"
        ),
    )
