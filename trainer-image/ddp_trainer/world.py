"""The life of the process group: form it, use it, take it down.

The training loop sees ranks, a device and a few collectives, never a backend or a store. Control
messages (stop flags, checkpoints, scores) always travel over gloo on the CPU: with NCCL they would
have to wait for the GPU, and NCCL notices a dead peer much later than gloo's broken connection.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from ddp_trainer.config import Environment
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.network import interface_towards
from ddp_trainer.rendezvous import meet

_FORMING_TIMEOUT = timedelta(seconds=60)
"""For the first contact, when all ranks have just been seen alive: if one died since, it shows."""

_logger = logging.getLogger(__name__)


class World:
    """A formed group, as seen by one of its ranks."""

    def __init__(self, *, rank: int, size: int, device: torch.device) -> None:
        self.rank = rank
        self.size = size
        self.device = device

    def wrap(self, model: nn.Module) -> DistributedDataParallel:
        """Move the model to this rank's device and average its gradients over all ranks."""
        model = model.to(self.device)
        devices = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)

    def sum(self, *values: float) -> list[float]:
        """Each value summed over all ranks."""
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return [float(value) for value in total]

    def start_sum(self, value: Tensor) -> dist.Work:
        """Begin to sum a CPU tensor over all ranks, in place; its `wait` ends it."""
        work: dist.Work = dist.all_reduce(value, async_op=True)
        return work

    def broadcast(self, data: bytes | None) -> bytes:
        """Rank 0's `data`, on all ranks."""
        size = torch.tensor([len(data or b"")])
        dist.broadcast(size, src=0)
        buffer = torch.empty(int(size), dtype=torch.uint8)
        if self.rank == 0 and data:
            buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if len(buffer):
            dist.broadcast(buffer, src=0)
        return bytes(buffer.numpy().data)

    def gather(self, data: bytes) -> list[bytes]:
        """Every rank's `data`, by rank, on all ranks."""
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(data)]))
        longest = max(int(size) for size in sizes)
        padded = torch.frombuffer(bytearray(data.ljust(longest, b"\0")), dtype=torch.uint8)
        parts = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(parts, padded)
        return [
            bytes(part.numpy().data)[: int(size)] for part, size in zip(parts, sizes, strict=True)
        ]

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self.sum(0.0)


@contextmanager
def formed(
    environment: Environment, *, rendezvous_timeout_seconds: float, group_timeout_seconds: float
) -> Iterator[World]:
    """Pin the device, meet the other ranks, form the group; take it down at the end.

    Raises:
        ConfigurationError: this pod has not the GPUs that its ranks need.
        LostPeerError: the other ranks did not come in time.
    """
    device = _pin_device(environment)
    membership = meet(environment, timeout_seconds=rendezvous_timeout_seconds)
    if "GLOO_SOCKET_IFNAME" not in os.environ:
        interface = interface_towards(membership.address)
        if interface is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = interface
    placement = environment.placement
    membership.store.set_timeout(_FORMING_TIMEOUT)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if placement.backend == "nccl" else "gloo",
        store=membership.store,
        rank=environment.rank,
        world_size=placement.world_size,
        timeout=_FORMING_TIMEOUT,
        device_id=device if placement.backend == "nccl" else None,
    )
    world = World(rank=environment.rank, size=placement.world_size, device=device)
    try:
        world.barrier()
        distributed_c10d._set_pg_timeout(timedelta(seconds=group_timeout_seconds))
        if world.rank == 0:
            interface = os.environ.get("GLOO_SOCKET_IFNAME", "gloo's own choice")
            _logger.info(
                "group of %d ranks formed: %s, interface %s",
                world.size,
                placement.backend,
                interface,
            )
        yield world
    except BaseException:
        # Taking down an NCCL group with work in flight waits for peers that may be gone.
        if placement.backend == "nccl":
            distributed_c10d._abort_process_group()
        else:
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()


def _pin_device(environment: Environment) -> torch.device:
    placement = environment.placement
    if placement.backend == "gloo":
        return torch.device("cpu")
    gpus = torch.cuda.device_count()
    if gpus < placement.local_world_size:
        raise ConfigurationError(
            f"{placement.local_world_size} processes in this pod need as many GPUs, but {gpus} "
            f"{'is' if gpus == 1 else 'are'} visible: raise the pod's nvidia.com/gpu limit, lower "
            "nprocPerNode, or set the backend to gloo to train on CPUs"
        )
    device = torch.device("cuda", environment.local_rank)
    # Before any group or model exists: whoever touches CUDA unpinned takes memory on GPU 0.
    torch.cuda.set_device(device)
    return device
