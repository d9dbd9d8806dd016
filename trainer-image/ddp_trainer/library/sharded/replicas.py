"""Finds out whether ranks with the same shard (HSDP) have equal states, and can replace each other.

They apply the same gradients to the same parameters, so these and the states of their optimizers
are equal. Buffers, which each rank's own samples change, and the script's own objects are not.
"""

from __future__ import annotations

from itertools import chain

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from ddp_trainer.run.parts import Parts


def shard_of(parts: Parts, mesh: DeviceMesh) -> int | None:
    """Return the number of this rank's shard; None: its state may differ from that of any other."""
    place = mesh.get_coordinate()
    equal = [*parts.models, *parts.optimizers, *parts.schedulers, *parts.plateaus, *parts.schedules]
    if mesh.ndim == 1 or place is None or len(equal) < len(parts.by_name):
        return None
    values = chain.from_iterable(model.state_dict().values() for model in parts.models)
    return place[-1] if all(isinstance(value, DTensor) for value in values) else None
