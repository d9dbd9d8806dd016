"""Which nodes a pod keeps off, on top of what its user asks of nodes."""

from collections.abc import Sequence
from typing import Any, Final

from ddp_operator.api.status import MAX_EXCLUDED
from ddp_operator.ports import Manifest

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


def prefer_others(spec: dict[str, Any], nodes: Sequence[str]) -> None:
    """Have a pod go to nodes other than these, where there is room on any."""
    term = {"weight": 100, "preference": {"matchFields": _not_in(nodes)}}
    affinity = spec.get("affinity") or {}
    node_affinity = affinity.get("nodeAffinity") or {}
    terms = [*(node_affinity.get(_PREFERRED) or ()), term]
    spec["affinity"] = {**affinity, "nodeAffinity": {**node_affinity, _PREFERRED: terms}}


def keep_off(spec: dict[str, Any], nodes: Sequence[str]) -> None:
    """Keep a pod off nodes, on top of what its user asks of nodes."""
    affinity = spec.get("affinity") or {}
    node_affinity = affinity.get("nodeAffinity") or {}
    required = node_affinity.get(_REQUIRED) or {}
    # A pod may run where any one of the terms holds.
    terms = required.get("nodeSelectorTerms") or [{}]
    fields = _not_in(nodes)
    terms = [{**term, "matchFields": [*(term.get("matchFields") or ()), *fields]} for term in terms]
    spec["affinity"] = {
        **affinity,
        "nodeAffinity": {**node_affinity, _REQUIRED: {**required, "nodeSelectorTerms": terms}},
    }


def kept_off(spec: Manifest) -> tuple[str, ...]:
    """Return the nodes that each term of a pod's node affinity keeps it off by their names."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get(_REQUIRED) or {}).get("nodeSelectorTerms") or ()
    each = [
        {
            name
            for field in term.get("matchFields") or ()
            if (field.get("key"), field.get("operator")) == ("metadata.name", "NotIn")
            for name in field.get("values") or ()
        }
        for term in terms
    ]
    return tuple(sorted(set.intersection(*each))[:MAX_EXCLUDED]) if each else ()


def _not_in(nodes: Sequence[str]) -> list[dict[str, Any]]:
    # By the node's own name: a field takes one value an expression, and all of them must hold.
    return [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
