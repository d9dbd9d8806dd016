"""Kinds of clusters: which nodes there are, and how the jobs of their users request GPUs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ddp_operator.ports import Manifest

from tests.simulation.world.nodes import ACCELERATOR, GPU_TYPE, GPUS_PER_NODE, name_of, node
from tests.simulation.world.resources import GPU

_LETTERS: Final = "abcdefgh"


@dataclass(frozen=True)
class Fleet:
    """The nodes of a cluster. Where some have GPUs, each pod of a job requests a node's GPUs."""

    name: str
    nodes: Mapping[str, Manifest]
    has_gpus: bool
    occupied: tuple[str, ...] = ()
    """Nodes that pods of other tenants hold all the time."""


def fleet(
    name: str,
    *,
    with_gpus: int,
    others: int,
    taint: bool = True,
    occupied: tuple[str, ...] = (),
) -> Fleet:
    """Return a cluster with so many nodes; those with GPUs come first."""
    made = [
        node(letter, number, gpus=GPUS_PER_NODE if number < with_gpus else 0, taint=taint)
        for number, letter in enumerate(_LETTERS[: with_gpus + others])
    ]
    nodes = {name_of(one): one for one in made}
    return Fleet(name, nodes, has_gpus=with_gpus > 0, occupied=occupied)


ROOMY: Final = fleet("room for everything", with_gpus=0, others=8)
"""Jobs find places, whatever nodes they avoid."""
EXACT: Final = fleet("GPUs for three pods", with_gpus=4, others=2, occupied=("node-d",))
"""As many as the largest jobs have pods: none is left for a spare, or to avoid another one."""
FEW: Final = fleet("GPUs for two pods", with_gpus=2, others=2)
"""Larger jobs wait."""
MIXED: Final = fleet("five nodes with GPUs, three without", with_gpus=5, others=3)
UNTAINTED: Final = fleet(
    "four nodes with GPUs, four without, no taints", with_gpus=4, others=4, taint=False
)
FLEETS: Final = (ROOMY, ROOMY, ROOMY, ROOMY, EXACT, FEW, MIXED, UNTAINTED)

REQUESTS: Final = ("spec.accelerator", "template and selector", "template")
"""Ways to request GPUs. The last one leaves the choice of nodes to the request alone."""


def requesting_gpus(spec: Mapping[str, Any], how: str) -> dict[str, Any]:
    """Return a job's spec that requests the GPUs of a node for each pod, in one of these ways.

    Overrides are dropped: they would need more GPUs in pod 0.
    """
    spec = {name: value for name, value in spec.items() if name != "overrides"}
    if how == "spec.accelerator":
        accelerator = {"type": GPU_TYPE, "count": GPUS_PER_NODE, "network": "none"}
        return {**spec, "accelerator": accelerator}
    pod = spec["template"]["spec"]
    trainer, *others = pod["containers"]
    resources = trainer.get("resources") or {}
    limits = {**(resources.get("limits") or {}), GPU: GPUS_PER_NODE}
    trainer = {**trainer, "resources": {**resources, "limits": limits}}
    changed = {**pod, "containers": [trainer, *others]}
    if how == "template and selector":
        changed["nodeSelector"] = {ACCELERATOR: GPU_TYPE}
    return {**spec, "template": {**spec["template"], "spec": changed}}
