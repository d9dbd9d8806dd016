"""Reads the gradients of a sharded model before they are reduced: those of this rank alone.

In a backward pass, `fully_shard` adds up the gradients of all ranks part by part. A wrong one would
be in the sum, and no rank could be named. So in a probe each rank reads its own gradients of the
whole model, and nothing is exchanged.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from ddp_trainer.collectives.script_collective import Collective
from ddp_trainer.collectives.script_group import ScriptGroup
from ddp_trainer.run.fingerprint import sum_of_bits

_MASK = (1 << 64) - 1


class Unreduced:
    """The fingerprint of the gradients of one backward pass."""

    def __init__(self, mesh: DeviceMesh) -> None:
        """`mesh`: of the models."""
        *replicas, shards = mesh.get_all_groups()
        self._replicas = [each for each in replicas if isinstance(each, ScriptGroup)]
        self._shards = shards
        self._sum = 0

    def omits(self, group: ScriptGroup, collective: Collective) -> bool:
        """Read the gradients that a collective would add up; return whether to leave it out."""
        is_of_replicas = group in self._replicas and collective.name == "allreduce"
        is_of_shards = group is self._shards and collective.is_reduction
        if is_of_shards or (is_of_replicas and self._shards.size() == 1):
            self._sum += sum_of_bits(collective.inputs)
        return is_of_shards or is_of_replicas

    def sum(self, loss: Tensor | float | None) -> int:
        """Return a signed 64-bit fingerprint of the gradients and the loss."""
        of_loss = sum_of_bits([torch.as_tensor(0.0 if loss is None else loss)])
        total = (self._sum + of_loss) & _MASK
        return total - (1 << 64) if total >> 63 else total
