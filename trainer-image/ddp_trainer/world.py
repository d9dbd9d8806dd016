"""The life of the process group: form it, watch it, break it, form it anew.

Whatever way a peer is lost in, the training code sees one error, `BrokenGroupError`, and has to do
one thing: form again. The process, its model and its optimizer stay as they are.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch import distributed as dist
from torch.distributed import distributed_c10d

from ddp_trainer.announcement import AnnouncedAddress
from ddp_trainer.config import Environment
from ddp_trainer.exit_codes import BrokenGroupError
from ddp_trainer.failures import is_lost_peer, reason
from ddp_trainer.group import Group
from ddp_trainer.hardware import pin_device
from ddp_trainer.heartbeat import Heartbeat
from ddp_trainer.network import interface_towards
from ddp_trainer.rendezvous import Membership, Rendezvous
from ddp_trainer.waits import Waits

_FORMING_TIMEOUT = timedelta(seconds=15)
"""For the first contact, when all ranks have just been seen alive: if one died since, it shows."""
_LAST_BEAT_SECONDS = 1.0
"""Long for a request to a store that lives."""

_logger = logging.getLogger(__name__)


class World:
    """All ranks of the job, met as often as needed; one for each process."""

    def __init__(
        self,
        environment: Environment,
        *,
        group_timeout_seconds: float,
        heartbeat_timeout_seconds: float,
        device_ids: tuple[int, ...] | None = None,
    ) -> None:
        """Pin this rank's device; nobody is met yet.

        `heartbeat_timeout_seconds`: after this time a silent rank counts as lost; 0: never.
        `device_ids`: the GPU of each local rank; None: the one with the same number.

        Raises:
            ConfigurationError: this pod has not the GPUs that its ranks need.
        """
        self._environment = environment
        self._group_timeout = timedelta(seconds=group_timeout_seconds)
        self._heartbeat_timeout_seconds = heartbeat_timeout_seconds
        self._rendezvous = Rendezvous(environment, AnnouncedAddress.from_env(os.environ))
        self._broken: list[dist.ProcessGroup] = []
        """What is left of the last group, if it broke."""
        self.device = pin_device(
            environment.placement, local_rank=environment.local_rank, device_ids=device_ids
        )

    @contextmanager
    def formed(
        self, *, timeout_seconds: float, told_to_stop: Callable[[], bool] = lambda: False
    ) -> Iterator[Group]:
        """Meet the other ranks within the timeout, form the group; take it down at the end.

        Raises:
            BrokenGroupError: a rank was lost, from wherever inside the block that surfaced: form
                again.
            RendezvousTimeoutError: the other ranks did not come in time.
            StoppedError: `told_to_stop` while waiting for them.
            ConfigurationError: they were started with other settings.
        """
        self._bury_the_broken()
        begin = time.monotonic()
        membership = self._rendezvous.meet(
            timeout_seconds=timeout_seconds, told_to_stop=told_to_stop
        )
        connection = _Connection(self._environment, membership, self.device)
        heartbeat: Heartbeat | None = None
        try:
            # Before the first contact, in which a frozen rank can keep the others for ever.
            heartbeat = self._start_heartbeat(membership, connection)
            group = connection.open(self._group_timeout)
            if group.rank == 0:
                _logger.info(
                    "group of %d ranks formed in %.2f s: %s, interface %s",
                    group.size,
                    time.monotonic() - begin,
                    self._environment.placement.backend,
                    os.environ.get("GLOO_SOCKET_IFNAME", "gloo's own choice"),
                )
            yield group
        except BaseException as error:
            if heartbeat is not None:
                heartbeat.stop()
            connection.abort(self._broken)
            cause = connection.cause_of(error)
            if isinstance(cause, Exception) and is_lost_peer(cause):
                raise BrokenGroupError(reason(cause)) from error
            if cause is not error:
                raise cause from error
            raise
        else:
            # Were a thread in the midst of a request when the interpreter ends, torch would abort.
            heartbeat.stop(wait_seconds=_LAST_BEAT_SECONDS)
            connection.close()

    def _bury_the_broken(self) -> None:
        # The remains of a broken group hang together in cycles. As long as its DDP wrapper lives,
        # it answers to the gradients of the model, which is its successor's part.
        gc.collect()
        # Only now, and by a thread of its own: whoever lets go of a process group last waits for
        # its threads. These may wait for Python's lock, which the DDP wrapper would not release
        # meanwhile, or for half a message that gloo has forgotten, until the group's timeout.
        threading.Thread(target=self._broken.clear, name="burial", daemon=True).start()
        self._broken = []

    def _start_heartbeat(self, membership: Membership, connection: _Connection) -> Heartbeat:
        heartbeat = Heartbeat(
            membership,
            rank=self._environment.rank,
            size=self._environment.placement.world_size,
            timeout_seconds=self._heartbeat_timeout_seconds,
            on_lost=connection.give_up,
        )
        if self._heartbeat_timeout_seconds > 0:
            heartbeat.start()
        return heartbeat


class _Connection:
    """torch's process group: there can be one in a process, and it is global."""

    def __init__(
        self, environment: Environment, membership: Membership, device: torch.device
    ) -> None:
        self._environment = environment
        self._membership = membership
        self._device = device
        self._nccl = environment.placement.backend == "nccl"
        self._waits = Waits()

    def open(self, timeout: timedelta) -> Group:
        if "GLOO_SOCKET_IFNAME" not in os.environ:
            interface = interface_towards(self._membership.address)
            if interface is not None:
                os.environ["GLOO_SOCKET_IFNAME"] = interface
        store = self._membership.store
        store.set_timeout(_FORMING_TIMEOUT)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if self._nccl else "gloo",
            store=store,
            rank=self._environment.rank,
            world_size=self._environment.placement.world_size,
            timeout=_FORMING_TIMEOUT,
            device_id=self._device if self._nccl else None,
        )
        group = Group(
            rank=self._environment.rank,
            size=self._environment.placement.world_size,
            device=self._device,
            waits=self._waits,
        )
        group.barrier()
        self._membership.connections.complete()
        if self._waits.failure is not None:  # perhaps before there was anything to cut
            raise self._waits.failure
        distributed_c10d._set_pg_timeout(timeout)
        return group

    def cause_of(self, error: BaseException) -> BaseException:
        """What made torch raise an error: it may be the last one to learn of it."""
        from_torch = type(error) is RuntimeError or (
            isinstance(error, RuntimeError) and is_lost_peer(error)
        )
        return self._waits.failure or error if from_torch else error

    def give_up(self, reason: str) -> None:
        """Make every collective under way fail, from any thread."""
        _logger.warning("%s: leaving the group", reason)
        self._membership.connections.cut()
        self._waits.give_up(reason)
        if self._nccl and dist.is_initialized():
            with contextlib.suppress(RuntimeError):
                distributed_c10d._get_default_group()._get_backend(self._device).abort()

    def abort(self, left: list[dist.ProcessGroup]) -> None:
        """Leave a group that may be broken; never waits for the others.

        What is left of it goes to `left`, to be kept until all that used it is gone.
        """
        # Work under way may wait for ranks that are alive and in turn wait for this one.
        self._membership.connections.cut()
        if dist.is_initialized():
            left.append(distributed_c10d._get_default_group())
            if self._nccl:
                distributed_c10d._abort_process_group()
        self.close()

    def close(self) -> None:
        """Leave a group in which nothing is under way."""
        if dist.is_initialized():
            dist.destroy_process_group()
        # The names of groups are counted, and part of their keys in the store. Ranks that failed
        # to form a group must count like those that never tried.
        distributed_c10d._world.group_count = 0
