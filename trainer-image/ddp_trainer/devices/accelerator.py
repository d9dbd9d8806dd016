"""Devices that are told their work in advance, and the communicators that join those of all ranks.

A collective on them has begun when it returns. It ends later, or when the communicator is aborted,
which looks the same from here: `gate` tells one from the other.

What is here for NCCL follows torch's sources, and has run on one GPU that two ranks shared.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import torch
from torch import distributed as dist
from torch._C._distributed_c10d import Backend, ErrorType
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import Store

from ddp_trainer.devices.gate import Event
from ddp_trainer.devices.marks import mark
from ddp_trainer.settings.environment import Placement

_logger = logging.getLogger(__name__)

_NCCL_SETTINGS = {
    # torch's watchdog notes that a collective failed or took too long, and touches nothing: 1 and 3
    # end the process, 2 would abort the communicator before this process knows that it is broken.
    # torch's documentation asks for 0 wherever a program aborts communicators by itself.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    # The watchdog asks all processes, by a key in the store that outlives the group, to tell what
    # they do and end minutes later. Successors would find it there.
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    # Four times this long it sleeps after an error, and nobody waits for what it would be good for.
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "250",
    # Else an error of CUDA that torch's watchdog meets ends the process.
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    # NVIDIA asks for 0 where processes outlive a lost peer: NVLink SHARP, of nodes with NVSwitch,
    # shares memory among the processes of a node.
    "NCCL_NVLS_ENABLE": "0",
}


@dataclass(frozen=True, kw_only=True)
class Contact:
    """How this rank meets the others, which have just come."""

    store: Store
    rank: int
    world_size: int
    timeout: timedelta
    """Of the first contact between CPUs, and of all their messages."""

    def make_group(self, backend: str) -> None:
        """Make torch's default group.

        Raises:
            RuntimeError: another rank was lost.
        """
        dist.init_process_group(
            backend,
            store=self.store,
            rank=self.rank,
            world_size=self.world_size,
            timeout=self.timeout,
        )


class Communicator(Protocol):
    """What joins the devices of one group."""

    control: dist.ProcessGroup | None
    """What takes messages between CPUs along; None: torch's default group."""

    def trouble(self) -> str | None:
        """What it knows to be wrong with itself, in a few words; from any thread."""

    def abort(self) -> None:
        """Release all collectives, whole or not; from any thread."""


class Accelerator(Protocol):
    """One rank's device, in one group after another."""

    def join(self, contact: Contact, *, on_contact: Callable[[], object]) -> Communicator:
        """Make torch's default group, whose collectives of the device's tensors run on the device.

        `on_contact` is called after the first contact. Whoever cuts the TCP sockets that are opened
        from then on ends the wait for the other devices.

        Raises:
            RuntimeError: another rank was lost.
        """

    def record(self) -> Event:
        """Mark the end of what the device was told so far."""


class Nccl:
    """A GPU, and NCCL between GPUs."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def join(self, contact: Contact, *, on_contact: Callable[[], object]) -> Communicator:
        """Make the group; the communicator too, while it is known that all ranks have just come.

        NCCL's initialisation has no timeout of its own: it waits for ever for a rank that is lost
        meanwhile. torch could begin it without blocking (TORCH_NCCL_USE_COMM_NONBLOCKING), but no
        longer does so by itself since NCCL 2.26 was seen to hang that way
        (pytorch/pytorch#153960), and would not abort it either: it waits for it with its lock held.
        So it blocks. It meets by TCP, and fails when its sockets are cut, listening ones included.
        """
        contact.make_group("cpu:gloo,cuda:nccl")
        on_contact()
        group = distributed_c10d._get_default_group()
        group.bound_device_id = self._device
        backend = group._get_backend(self._device)
        backend.eager_connect_single_device(self._device)
        return _NcclCommunicator(backend)

    def record(self) -> Event:
        """An event on the stream that computes: DDP let it wait for the streams of collectives."""
        return mark(self._device)


class _NcclCommunicator:
    control: dist.ProcessGroup | None = None

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def trouble(self) -> str | None:
        """What torch's watchdog found, a fraction of a second after it came to pass."""
        error = self._backend.get_error()
        return None if error == ErrorType.SUCCESS else f"NCCL: {error.name}"

    def abort(self) -> None:
        """End the kernels; torch waits for that at most for the group's timeout."""
        self._backend.abort()


def accelerator_for(placement: Placement, device: torch.device) -> Accelerator | None:
    """A rank's accelerator; None where it computes on the CPU, which does as it is told at once."""
    if placement.backend != "nccl":
        return None
    _check_nccl(os.environ)
    return Nccl(device)


def prepare_nccl(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set what makes a broken collective this process's own affair; what the user set stays."""
    for name, value in _NCCL_SETTINGS.items():
        environment.setdefault(name, value)


def _check_nccl(environment: Mapping[str, str]) -> None:
    """Warn of a setting of the user's that takes broken collectives out of this process's hands."""
    name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    value, wanted = environment.get(name, ""), _NCCL_SETTINGS[name]
    if value != wanted:
        _logger.warning(
            "%s is %r: torch may end this process when another rank is lost, and its state is lost "
            "with it. Unset the variable in the pod and in the image, or set it to %s",
            name,
            value,
            wanted,
        )
