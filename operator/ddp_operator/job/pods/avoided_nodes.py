"""Node affinity that keeps a pod off nodes, in addition to its template's."""

from collections.abc import Collection, Mapping
from typing import Any, Final

from ddp_operator.api.status import MAX_EXCLUDED
from ddp_operator.ports import Manifest

HOSTNAME: Final = "kubernetes.io/hostname"
"""The label that identifies a node."""
_MAX_NAME: Final = 253
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


def prefer_others(spec: dict[str, Any], nodes: Mapping[str, int]) -> None:
    """Let a pod prefer other nodes than these, if any; of these, the ones with the fewest failures.
    Otherwise it could come to one and the same node again and again.
    """
    if not nodes:
        return
    more = [name for name, failures in nodes.items() if failures > min(nodes.values())]
    terms = [
        {"weight": weight, "preference": {"matchFields": _not_in(names)}}
        for weight, names in ((100, list(nodes)), (50, more))
        if names
    ]
    _set(spec, _PREFERRED, [*(_node_affinity(spec).get(_PREFERRED) or ()), *terms])


def keep_off(spec: dict[str, Any], nodes: Collection[str]) -> None:
    """Keep a pod off these nodes, if any."""
    if not nodes:
        return
    required = _node_affinity(spec).get(_REQUIRED) or {}
    # The terms are alternatives, so each needs the fields.
    terms = required.get("nodeSelectorTerms") or [{}]
    fields = _not_in(nodes)
    terms = [{**term, "matchFields": [*(term.get("matchFields") or ()), *fields]} for term in terms]
    _set(spec, _REQUIRED, {**required, "nodeSelectorTerms": terms})


def kept_off(spec: Manifest) -> tuple[str, ...]:
    """Return the node names that all terms of a pod's node affinity exclude."""
    terms = (_node_affinity(spec).get(_REQUIRED) or {}).get("nodeSelectorTerms") or ()
    each = [
        {
            str(name)[:_MAX_NAME]
            for field in term.get("matchFields") or ()
            if (field.get("key"), field.get("operator")) == ("metadata.name", "NotIn")
            for name in field.get("values") or ()
        }
        for term in terms
    ]
    return tuple(sorted(set.intersection(*each))[:MAX_EXCLUDED]) if each else ()


def _node_affinity(spec: Manifest) -> Manifest:
    found: Manifest = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    return found


def _set(spec: dict[str, Any], kind: str, value: object) -> None:
    affinity = {**_node_affinity(spec), kind: value}
    spec["affinity"] = {**(spec.get("affinity") or {}), "nodeAffinity": affinity}


def host_of(spec: Manifest) -> str:
    """Return the host name that a pod's node selector asks for; empty if it asks for none."""
    return str((spec.get("nodeSelector") or {}).get(HOSTNAME) or "")[:_MAX_NAME]


def _not_in(nodes: Collection[str]) -> list[dict[str, Any]]:
    # A field expression takes one value, and all expressions must hold.
    return [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
