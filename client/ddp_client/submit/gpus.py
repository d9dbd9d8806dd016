"""GPUs by short names, such as `h100:8`, and the node labels that select them."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from ddp_operator.api.constants import GKE_ACCELERATOR_LABEL, GPU_RESOURCE, MAX_GPUS
from ddp_operator.api.devices import is_accelerator
from ddp_operator.api.gpus import GPUS
from ddp_operator.api.values.text import clean
from ddp_operator.ports import Manifest

from ddp_client.submit.validation import JobRequestError

TYPE_LABELS: Final = (
    GKE_ACCELERATOR_LABEL,
    "nvidia.com/gpu.product",  # NVIDIA's feature discovery
    "amd.com/gpu.product-name",  # AMD's node labeller
    "karpenter.k8s.aws/instance-gpu-name",
    "k8s.amazonaws.com/accelerator",
    "accelerator",
    "agentpool",  # AKS; named by people
    "node.kubernetes.io/instance-type",  # on Azure it contains the GPU
)
"""Labels that name a node's GPUs, the most exact first."""
_NAMED_BY_PEOPLE: Final = ("accelerator", "agentpool")
_GKE_LABELS: Final = (GKE_ACCELERATOR_LABEL, "cloud.google.com/gke-nodepool")

_FULL: Final = re.compile(r"[a-z0-9]([-a-z0-9._]{0,61}[a-z0-9])?")
_VENDOR: Final = "nvidia-"
_MOST_NAMED: Final = 3


def _short_names() -> dict[str, str]:
    """Return types by their names without vendor and, if that is unique, without memory size."""
    bare = {name.removeprefix(_VENDOR).removeprefix("tesla-"): name for name in GPUS}
    return {re.sub(r"-\d+gb$", "", short): name for short, name in bare.items()} | bare


SHORT_NAMES: Final[Mapping[str, str]] = _short_names()
"""GKE's accelerator types by short names such as `h100` and `a100-80gb`."""


@dataclass(frozen=True)
class GpuRequest:
    """The GPUs of each pod."""

    type: str | None = None
    """The value of the node label; None: any GPU."""
    count: int = 1
    resource: str = GPU_RESOURCE
    label: str = GKE_ACCELERATOR_LABEL
    """The node label that must have the value `type`."""
    asked: str = field(default="", compare=False)
    """The type in the user's words."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `COUNT`, `RESOURCE=COUNT`, `TYPE` or `TYPE:COUNT`.

        A type that GKE does not have may be one of the cluster's: see `on_nodes`.

        Raises:
            JobRequestError: it has another form.
        """
        said = text.strip()
        if said.isdecimal():
            return cls(count=_count(text, said))
        resource, equals, number = said.partition("=")
        if equals:
            if not is_accelerator(resource):
                raise JobRequestError(
                    f"GPUs {text[:80]!r}: {resource[:40]!r} is no resource of GPUs; use one like "
                    f"{GPU_RESOURCE}=8, amd.com/gpu=8 or habana.ai/gaudi=8"
                )
            return cls(count=_count(text, number), resource=resource)
        called, colon, number = said.lower().partition(":")
        count = _count(text, number) if colon else 1
        if not _FULL.fullmatch(called):
            raise _unknown(text)
        return cls(SHORT_NAMES.get(called, called), count, asked=called)

    @property
    def is_gke(self) -> bool:
        """True if GKE's label selects the nodes, for which `spec.accelerator` is made.

        Raises:
            JobRequestError: GKE has no such type.
        """
        if self.type is None or self.label != GKE_ACCELERATOR_LABEL:
            return False
        if not self.type.startswith(_VENDOR) or "." in self.type or "_" in self.type:
            raise _unknown(self.asked or self.type)
        return True

    def on_nodes(self, nodes: Sequence[Manifest]) -> Self:
        """Return the request with the label by which these nodes tell their type.

        GKE's label remains on GKE, where nodes may be created on demand, and if there are no nodes.

        Raises:
            JobRequestError: no node has such GPUs.
        """
        if self.type is None or not nodes:
            return self
        every = [node["metadata"].get("labels") or {} for node in nodes]
        if any(label in labels for labels in every for label in _GKE_LABELS):
            return self
        asked = self.asked or self.type
        for label in TYPE_LABELS:
            fitting = [
                node
                for node, labels in zip(nodes, every, strict=True)
                if offered(node) and _fits(asked, label, labels.get(label, ""))
            ]
            if fitting:
                values = Counter(node["metadata"]["labels"][label] for node in fitting)
                [(value, _)] = values.most_common(1)
                resources = {name for node in fitting for name in offered(node)}
                resource = GPU_RESOURCE if GPU_RESOURCE in resources else min(resources)
                return replace(self, type=value, label=label, resource=resource)
        types = sorted({type_of(node)[1] for node in nodes if offered(node)} - {""})
        has = ", ".join(clean(each, 40) for each in types[:_MOST_NAMED]) or "no label for types"
        raise JobRequestError(
            f"GPUs {asked[:40]!r}: no node has such; the cluster has {has}. A number alone asks "
            "for any GPU"
        )


def offered(node: Manifest) -> Mapping[str, int]:
    """Return the numbers of a node's GPUs by resource; only resources that it has."""
    amounts = counts((node.get("status") or {}).get("allocatable") or {})
    return {name: amount for name, amount in amounts.items() if amount}


def counts(amounts: Mapping[str, Any]) -> Mapping[str, int]:
    """Return the whole numbers of GPUs among amounts by resource."""
    return {
        name: int(str(amount))
        for name, amount in amounts.items()
        if is_accelerator(name) and str(amount).isdecimal()
    }


def type_of(node: Manifest) -> tuple[str, str]:
    """Return the most exact label for a node's GPUs and its value; empty without any."""
    labels = node["metadata"].get("labels") or {}
    return next(((label, labels[label]) for label in TYPE_LABELS if label in labels), ("", ""))


def _fits(asked: str, label: str, value: str) -> bool:
    """Return whether a value has all words of a type, as NVIDIA-A100-SXM4-80GB has a100-80gb."""
    value = value.lower()
    words = re.split(r"[-_. ]", value)
    wanted = re.split(r"[-_. ]", asked.lower())
    if label in _NAMED_BY_PEOPLE:
        return all(word in value for word in wanted)
    return all(word in words for word in wanted)


def _count(text: str, number: str) -> int:
    count = int(number) if number.isdecimal() and len(number) <= 3 else 0
    if not 0 < count <= MAX_GPUS:
        raise JobRequestError(
            f"GPUs {text[:80]!r}: use a number from 1 to {MAX_GPUS}, such as 8 or h100:8 for 8 "
            "GPUs in each pod"
        )
    return count


def _unknown(text: str) -> JobRequestError:
    known = ", ".join(sorted(SHORT_NAMES))
    return JobRequestError(
        f"GPUs {text[:40]!r}: unknown type, use one of {known}, or a GKE type that begins "
        f"with {_VENDOR}; a number alone asks for any GPU"
    )
