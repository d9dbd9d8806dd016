"""The scheduler: where a pod may be bound, and why it may not."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from ddp_operator.ports import Key, Manifest

from tests.simulation.world.kubelet import is_over, node_of
from tests.simulation.world.nodes import name_of
from tests.simulation.world.resources import Resources, offered, requested
from tests.simulation.world.tenants import Tenants

_KEEPS_AWAY = ("NoSchedule", "NoExecute")


class Scheduler:
    """Finds nodes for pods."""

    def __init__(
        self,
        nodes: Mapping[str, Manifest],
        pods: Mapping[Key, Manifest],
        tenants: Tenants | None = None,
    ) -> None:
        self._nodes = nodes
        self._pods = pods
        self._requested: dict[str, Resources] = {}
        """By the UIDs of pods. Their requests never change."""
        self.tenants = tenants or Tenants()

    def feasible(self, pod: Manifest) -> list[str]:
        """Return the nodes that a pod may be bound to: of these, the ones that it likes most."""
        wanted, taken = self.requests_of(pod), self.taken()
        names = [
            name_of(node)
            for node in self._nodes.values()
            if not obstacle(pod, node, taken[name_of(node)], wanted)
        ]
        dislike = {name: _dislike(pod, name) for name in names}
        return [name for name in names if dislike[name] == min(dislike.values())]

    def message(self, pod: Manifest) -> str:
        """Return the message about a pod that fits on no node."""
        wanted, taken = self.requests_of(pod), self.taken()
        why = Counter(
            obstacle(pod, node, taken[name_of(node)], wanted) or "node(s) were reserved"
            for node in self._nodes.values()
        )
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(why.items()))
        return f"0/{why.total()} nodes are available: {reasons}."

    def taken(self) -> dict[str, Resources]:
        """Return the requests of all pods on each node. A pod has its place until it has ended."""
        taken: dict[str, Resources] = defaultdict(Resources, self.tenants.taken)
        for pod in self._pods.values():
            if (node := node_of(pod)) and not is_over(pod):
                taken[node] = taken[node] + self.requests_of(pod)
        return taken

    def free(self, node: Manifest) -> Resources:
        """Return what pods may still request on a node."""
        return offered(node) - self.taken()[name_of(node)]

    def requests_of(self, pod: Manifest) -> Resources:
        """Return what a pod requests."""
        uid = pod["metadata"].get("uid", "")
        if uid not in self._requested:
            self._requested[uid] = requested(pod)
        return self._requested[uid]


def obstacle(pod: Manifest, node: Manifest, taken: Resources, wanted: Resources) -> str:
    """Return why a pod may not be bound to a node; empty if it may."""
    if not (selects(pod, node) and name_of(node) not in avoided(pod)):
        return "node(s) didn't match Pod's node affinity/selector"
    for taint in node["spec"].get("taints") or ():
        if not tolerates(pod, taint):
            return f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"
    room = offered(node)
    for name, amount in wanted.items():
        if amount > room[name] - taken[name]:
            return "Too many pods" if name == "pods" else f"Insufficient {name}"
    return ""


def selects(pod: Manifest, node: Manifest) -> bool:
    """Return whether a node has the labels that a pod's node selector asks for."""
    selector: Mapping[str, str] = pod["spec"].get("nodeSelector") or {}
    labels: Mapping[str, str] = node["metadata"]["labels"]
    return selector.items() <= labels.items()


def avoided(pod: Manifest) -> set[str]:
    """Return the names of nodes that all terms of a pod's node affinity exclude."""
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    return set.intersection(*map(_not_in, required.get("nodeSelectorTerms") or [{}]))


def tolerates(pod: Manifest, taint: Mapping[str, str]) -> bool:
    """Return whether a pod may be bound to a node in spite of its taint."""
    if taint["effect"] not in _KEEPS_AWAY:
        return True
    return any(_matches(one, taint) for one in pod["spec"].get("tolerations") or ())


def tolerates_everything(pod: Manifest) -> bool:
    """Return whether no taint keeps a pod off a node or evicts it."""
    tolerations = pod["spec"].get("tolerations") or ()
    return any(one.get("operator") == "Exists" and not one.get("key") for one in tolerations)


def _matches(toleration: Mapping[str, Any], taint: Mapping[str, str]) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if not toleration.get("key"):
        return toleration.get("operator") == "Exists"
    if toleration["key"] != taint["key"]:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return True
    return str(toleration.get("value") or "") == taint.get("value", "")


def _dislike(pod: Manifest, node: str) -> int:
    """Return the sum of the weights by which a pod prefers other nodes."""
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    preferred = affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
    return sum(one["weight"] for one in preferred if node in _not_in(one["preference"]))


def _not_in(term: Manifest) -> set[str]:
    """Return the node names that a term excludes: by name, or by host name as users write it."""
    fields = [*(term.get("matchFields") or ()), *(term.get("matchExpressions") or ())]
    return {value for one in fields if one["operator"] == "NotIn" for value in one["values"]}
