"""Devices that execute work asynchronously, and the communicators between those of all ranks.

When a collective on them returns, it has only begun. It ends later, or when the communicator is
aborted, and the two look the same from here: `gate` distinguishes them.

The code for NCCL follows torch's sources, and has run on one GPU that two ranks shared.
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
    # torch's watchdog only records that a collective failed or took too long. 1 and 3 end the
    # process; 2 aborts the communicator before this process knows that it is broken. torch's
    # documentation requires 0 for programs that abort communicators themselves.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    # The watchdog would ask all processes, by a key in the store, to dump their state and to end
    # minutes later. The store outlives the group, so later processes would find the key.
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    # After an error the watchdog sleeps four times this long, for dumps that are not used here.
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "250",
    # Otherwise a CUDA error that torch's watchdog finds ends the process.
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    # NVIDIA requires 0 if processes outlive a lost peer: NVLink SHARP, on nodes with NVSwitch,
    # shares memory among the processes of a node.
    "NCCL_NVLS_ENABLE": "0",
}


@dataclass(frozen=True, kw_only=True)
class Contact:
    """Parameters of the first contact with the other ranks, which have just registered."""

    store: Store
    rank: int
    world_size: int
    timeout: timedelta
    """Timeout of the first contact between CPUs, and of all their messages."""

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
    """Connects the devices of one group."""

    control: dist.ProcessGroup | None
    """The group for messages between CPUs; None: torch's default group."""

    def trouble(self) -> str | None:
        """Return a known error in a few words, or None; callable from any thread."""

    def abort(self) -> None:
        """Release all collectives, complete or not; callable from any thread."""


class Accelerator(Protocol):
    """One rank's device, in one group after another."""

    def join(self, contact: Contact, *, on_contact: Callable[[], object]) -> Communicator:
        """Make torch's default group; its collectives of the device's tensors run on the device.

        `on_contact` is called after the first contact. Cutting TCP sockets that are opened after it
        ends the wait for the other devices.

        Raises:
            RuntimeError: another rank was lost.
        """

    def record(self) -> Event:
        """Mark the end of the work queued on the device so far."""


class Nccl:
    """A GPU, and NCCL between GPUs."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def join(self, contact: Contact, *, on_contact: Callable[[], object]) -> Communicator:
        """Make the group, and at once the communicator, because all ranks have just registered.

        NCCL's initialisation has no timeout: it waits for ever for a rank that is lost meanwhile.
        torch can start it without blocking (TORCH_NCCL_USE_COMM_NONBLOCKING). That is no longer its
        default since NCCL 2.26 hung that way (pytorch/pytorch#153960), and torch could not abort it
        either, because it waits with its lock held. So it blocks here. It connects by TCP, and
        fails when its sockets are cut, including listening ones.
        """
        contact.make_group("cpu:gloo,cuda:nccl")
        on_contact()
        group = distributed_c10d._get_default_group()
        group.bound_device_id = self._device
        backend = group._get_backend(self._device)
        backend.eager_connect_single_device(self._device)
        return _NcclCommunicator(backend)

    def record(self) -> Event:
        """Record an event on the computing stream; DDP makes it wait for those of collectives."""
        return mark(self._device)


class _NcclCommunicator:
    control: dist.ProcessGroup | None = None

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def trouble(self) -> str | None:
        """Return the error that torch's watchdog found, a fraction of a second after it began."""
        error = self._backend.get_error()
        return None if error == ErrorType.SUCCESS else f"NCCL: {error.name}"

    def abort(self) -> None:
        """End the kernels; torch waits for that at most for the group's timeout."""
        self._backend.abort()


def accelerator_for(placement: Placement, device: torch.device) -> Accelerator | None:
    """Return a rank's accelerator; None on the CPU, which executes work at once."""
    if placement.backend != "nccl":
        return None
    _check_nccl(os.environ)
    return Nccl(device)


def prepare_nccl(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set variables that let this process handle broken collectives; keep the user's values."""
    for name, value in _NCCL_SETTINGS.items():
        environment.setdefault(name, value)


def _check_nccl(environment: Mapping[str, str]) -> None:
    """Warn of a user's setting that keeps this process from handling broken collectives."""
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
