"""The GPUs of a cluster, existing and free, by type."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddp_operator.api.constants import GKE_ACCELERATOR_LABEL, GPU_RESOURCE
from ddp_operator.api.values.text import clean
from ddp_operator.ports import Manifest

from ddp_client.submit.gpus import SHORT_NAMES, counts, offered, type_of
from ddp_client.text import columns


@dataclass
class Stock:
    """The GPUs of one type."""

    label: str
    """The node label that names the type; empty without any."""
    type: str
    resource: str
    nodes: int = 0
    total: int = 0
    free: int = 0
    most_free: int = 0
    """Free GPUs of one node, so the most that a pod can get now."""

    @property
    def option(self) -> str:
        """How `kubectl ddp run` asks for them."""
        if not self.type:
            return "--gpus N" if self.resource == GPU_RESOURCE else f"--gpus {self.resource}=N"
        called = self.type.lower()
        if self.label == GKE_ACCELERATOR_LABEL:
            called = next((short for short, full in SHORT_NAMES.items() if full == called), called)
        return f"--gpus {called}:N"


def stocks(nodes: Sequence[Manifest], pods: Sequence[Manifest] | None) -> list[Stock]:
    """Return the GPUs of nodes; without pods, none is known to be in use."""
    used: Counter[tuple[str, str]] = Counter()
    for pod in pods or ():
        for resource, amount in _used(pod).items():
            used[pod["spec"].get("nodeName") or "", resource] += amount
    by_type: dict[tuple[str, str, str], Stock] = {}
    for node in nodes:
        for resource, amount in offered(node).items():
            label, type_ = type_of(node)
            stock = by_type.setdefault((label, type_, resource), Stock(label, type_, resource))
            in_use = used[node["metadata"]["name"], resource]
            free = max(amount - in_use, 0) if _takes_pods(node) else 0
            stock.nodes += 1
            stock.total += amount
            stock.free += free
            stock.most_free = max(stock.most_free, free)
    return sorted(by_type.values(), key=lambda stock: (-stock.total, stock.type))


def table(offers: Sequence[Stock], *, known: bool) -> list[str]:
    """Return the GPUs as lines; `known`: the pods that use them are."""
    rows = [("TYPE", "RESOURCE", "NODES", "GPUS", "FREE", "ON ONE NODE", "RUN WITH")]
    for stock in offers:
        free = (str(stock.free), str(stock.most_free)) if known else ("?", "?")
        type_, resource = clean(stock.type or "-", 63), clean(stock.resource, 63)
        numbers = (str(stock.nodes), str(stock.total), *free)
        rows.append((type_, resource, *numbers, clean(stock.option, 80)))
    labels = sorted({stock.label for stock in offers} - {""})
    note = f"types by the node label {clean(', '.join(labels), 200)}" if labels else ""
    return [*columns(rows), *(["", note] if note else [])]


def is_ready(node: Manifest) -> bool:
    """Return whether a node is ready."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def _takes_pods(node: Manifest) -> bool:
    return is_ready(node) and not (node.get("spec") or {}).get("unschedulable")


def _used(pod: Manifest) -> Mapping[str, int]:
    """Return a pod's GPUs by resource."""
    spec = pod["spec"]
    used = sum(map(_limits, spec.get("containers") or ()), Counter[str]())
    for container in spec.get("initContainers") or ():
        used |= _limits(container)
    return used


def _limits(container: Mapping[str, Any]) -> Counter[str]:
    return Counter(counts((container.get("resources") or {}).get("limits") or {}))
