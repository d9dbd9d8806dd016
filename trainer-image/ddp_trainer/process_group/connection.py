"""Creates, watches, aborts and closes torch's process group."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed import distributed_c10d

from ddp_trainer.collectives.group import Group
from ddp_trainer.collectives.pending import PendingWork
from ddp_trainer.devices.accelerator import Accelerator, Communicator, Contact
from ddp_trainer.devices.gate import Gate, expect
from ddp_trainer.exit_codes import BrokenGroupError
from ddp_trainer.process_group.end_of_training import ScriptProgress, wait_for_all_to_end
from ddp_trainer.process_group.failures import is_lost_peer, reason
from ddp_trainer.process_group.lifeline import Lifeline, tie
from ddp_trainer.process_group.rendezvous.membership import Membership
from ddp_trainer.process_group.rendezvous.network import interface_towards
from ddp_trainer.process_group.sockets import Endpoint
from ddp_trainer.process_group.teardown import keep_for_teardown
from ddp_trainer.settings.timeouts import contact_seconds
from ddp_trainer.system.threads import start_thread
from ddp_trainer.system.watchdog import Watchdog

_LEAVE_SECONDS = 120.0
"""Time to abort a communicator and to finish the work queued on the device. Less than the others
wait for this rank (--rendezvous-timeout-seconds)."""
_DRAIN_SECONDS = 30.0
"""Time for a device to finish a step once no collective blocks it."""
_WATCH_SECONDS = 1.0
_set_timeout = getattr(dist, "set_timeout", None) or distributed_c10d._set_pg_timeout
"""Public since torch 2.15, which warns about the older name."""

_logger = logging.getLogger(__name__)


def _from_all(group: Group, listening: list[Endpoint]) -> set[Endpoint]:
    """Return the addresses at which the ranks listen; the first collective of the group."""
    found = group.gather(json.dumps(listening).encode())
    return {(address, port) for one in found for address, port in json.loads(one)}


class Connection:
    """torch's default process group; a process has at most one."""

    def __init__(
        self,
        membership: Membership,
        device: torch.device,
        accelerator: Accelerator | None,
        watchdog: Watchdog,
        *,
        told_to_stop: Callable[[], bool] = lambda: False,
        script_progress: Callable[[], ScriptProgress] = tuple,
    ) -> None:
        """`watchdog`: ends the process if the accelerator does not return.

        `script_progress`: returns the progress of this rank's script.
        """
        self._membership = membership
        self._device = device
        self._accelerator = accelerator
        self._watchdog = watchdog
        self._told_to_stop = told_to_stop
        self._script_progress = script_progress
        self._communicator: Communicator | None = None
        self._smaller: list[dist.ProcessGroup] = []
        """Groups of some of the ranks, made by the script."""
        self._pending = PendingWork()
        self._lifeline: Lifeline | None = None
        self._left = threading.Event()

    def open(self, timeout: timedelta) -> Group:
        """Form the group with all ranks, which have just met; `timeout` applies to its collectives.

        Raises:
            RuntimeError: a rank was lost meanwhile.
        """
        if "GLOO_SOCKET_IFNAME" not in os.environ:
            interface = interface_towards(self._membership.address)
            if interface is not None:
                os.environ["GLOO_SOCKET_IFNAME"] = interface
        connections, store = self._membership.connections, self._membership.store
        connections.begin_to_form()
        rank, size = self._membership.rank, self._membership.size
        # Short, to notice a rank that died since the rendezvous, in which all were alive.
        contact = Contact(
            store=store,
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=contact_seconds(size)),
        )
        store.set_timeout(contact.timeout)
        # A new group each time. torch 2.14 and newer can reconfigure one in place, but a collective
        # that waits for half a message blocks one of its two threads: after two, it hangs.
        # Groups of two backends, as NCCL needs here, cannot be reconfigured.
        if self._accelerator is None:
            contact.make_group("gloo")
        else:
            self._communicator = self._join(
                self._accelerator, contact, within_seconds=timeout.total_seconds()
            )
        control = self._communicator.control if self._communicator is not None else None
        world = distributed_c10d._get_default_group()
        group = Group(
            rank=rank,
            size=size,
            device=self._device,
            pending=self._pending,
            gate=Gate(
                self._accelerator.record if self._accelerator is not None else None,
                # Without a device, nothing else can break the group, and no step calls more code.
                partial(getattr, self._pending, "failure")
                if self._accelerator is None
                else self._failure,
                timeout_seconds=timeout.total_seconds(),
                told_to_stop=self._told_to_stop,
            ),
            queues=self._accelerator is not None,
            world=world,
            control=control,
            form_smaller=partial(self._form_smaller, timeout=timeout),
            wait_for_all_to_end=partial(self._wait_for_all_to_end, timeout=timeout),
        )
        connections.complete(_from_all(group, connections.listening()))
        if self._pending.failure is not None:  # perhaps before there were connections to cut
            raise self._pending.failure
        _set_timeout(timeout, control or world)
        if self._communicator is not None:
            # The host may wait for the device elsewhere, such as in a forward pass that reads a
            # number. Only an abort ends that wait.
            start_thread("ddp: watches the device's group", self._watch)
        if size > 1:
            self._lifeline = tie(
                group,
                self._membership.store_address,
                self.give_up,
                within_seconds=contact.timeout.total_seconds(),
            )
        return group

    def _join(
        self, accelerator: Accelerator, contact: Contact, *, within_seconds: float
    ) -> Communicator:
        """Connect the devices of all ranks; the wait for a lost rank ends when it is cut."""
        connections = self._membership.connections
        what = "the devices of all ranks did not connect, and the wait cannot be ended"
        try:
            with (
                self._watchdog.during(within_seconds + _LEAVE_SECONDS, what),
                connections.cut_unless_done_within(
                    within_seconds, is_vain=lambda: self._pending.failure is not None
                ),
            ):
                return accelerator.join(contact, on_contact=connections.begin_to_join_devices)
        except RuntimeError as error:
            raise self._pending.failure or error from error

    def _wait_for_all_to_end(self, *, timeout: timedelta) -> None:
        seconds = timeout.total_seconds()
        wait_for_all_to_end(
            self._membership, self._script_progress(), self._failure, timeout_seconds=seconds
        )

    def _form_smaller(
        self, ranks: tuple[int, ...], name: str, *, timeout: timedelta
    ) -> dist.ProcessGroup:
        new_group: Any = distributed_c10d._new_process_group_helper
        known = distributed_c10d._world
        backend, store = known.pg_map[distributed_c10d._get_default_group()]
        group: dist.ProcessGroup
        what = "the devices of a group that the script made did not connect in time"
        with self._watchdog.during(timeout.total_seconds(), what):
            group, _ = new_group(
                len(ranks),
                ranks.index(self._membership.rank),
                list(ranks),
                distributed_c10d.Backend(backend),
                store,
                f"smaller/{name}",
                timeout=timeout,
                device_id=self._device if self._device.type == "cuda" else None,
            )
        known.pg_group_ranks[group] = {rank: number for number, rank in enumerate(ranks)}
        self._smaller.append(group)
        return group

    def cause_of(self, error: BaseException) -> BaseException:
        """Return the first cause of an error that torch raised, which may be only a consequence."""
        from_torch = type(error) is RuntimeError or (
            isinstance(error, RuntimeError) and is_lost_peer(error)
        )
        return self._pending.failure or error if from_torch else error

    def give_up(self, why: str) -> None:
        """Make every collective in progress fail; callable from any thread."""
        _logger.warning("%s: leaving the group", why)
        what = f"its device did not return when leaving the group ({why})"
        if self._accelerator is not None and self._communicator is None:
            self._watchdog.within(_LEAVE_SECONDS, what)
        self.cut(why=why)
        # Before the abort, which lets the device continue: the gate then reads the failure.
        self._pending.give_up(why)
        communicator = self._communicator
        if communicator is not None and self._accelerator is not None:
            # This does not wait for the host, which may be busy for longer, such as with an
            # evaluation of its own. Only the abort or the device can be stuck here.
            with self._watchdog.during(_LEAVE_SECONDS, what):
                self._abort_all(communicator)
                with contextlib.suppress(RuntimeError):  # it failed; the host will notice
                    expect(self._accelerator.record(), within_seconds=math.inf, what="continue")

    def _abort_all(self, communicator: Communicator) -> None:
        """Abort the groups of this rank at the same time.

        Each abort returns once the device is idle, and it waits for the collectives of the others.
        """
        others = [
            start_thread("ddp: aborts a group", partial(_abort, smaller))
            for smaller in list(self._smaller)
        ]
        _abort(communicator)
        for thread in others:
            thread.join()

    def cut(self, why: str | None = "") -> None:
        """End this rank's requests to the store, and tell the others that it leaves.

        `why`: what broke the group; None: the others leave for the same reason.
        """
        self._left.set()
        if self._lifeline is not None:
            self._lifeline.leave(why)
        self._membership.connections.cut()

    def abort(self, *, in_order: bool = False) -> None:
        """Leave a group that may be broken; never waits for the others.

        `in_order`: the others leave for the same reason.
        """
        # Collectives in progress may wait for ranks that are alive and wait for this one.
        self.cut(None if in_order else "")
        if self._accelerator is not None:
            self._watchdog.within(
                _LEAVE_SECONDS, "its device did not return when leaving the group"
            )
            if self._communicator is not None:
                self._abort_all(self._communicator)  # torch aborts them one after the other
            if dist.is_initialized():
                self._keep_for_teardown()
                try:
                    distributed_c10d._abort_process_group()
                except RuntimeError as error:
                    _logger.warning("the communicator cannot be aborted: %s", reason(error))
        self.close()

    def expect_device(self) -> None:
        """Check that the device works again, now that no collective blocks it.

        Raises:
            LostDeviceError: the device hangs.
        """
        if self._accelerator is not None:
            expect(
                self._accelerator.record(),
                within_seconds=_DRAIN_SECONDS,
                what="finish its queued work",
            )

    def close(self) -> None:
        """Leave a group that has no collective in progress."""
        self._left.set()
        if self._lifeline is not None:
            self._lifeline.leave()
        if self._communicator is not None:
            self._watchdog.within(
                _LEAVE_SECONDS, "its device did not return when leaving the group"
            )
        if dist.is_initialized():
            self._keep_for_teardown()
            dist.destroy_process_group()
        # torch numbers groups, and the number is part of their keys in the store. Ranks that failed
        # to form a group must count like those that never tried.
        distributed_c10d._world.group_count = 0

    def _keep_for_teardown(self) -> None:
        keep_for_teardown(*distributed_c10d._world.pg_map, self._communicator)
        self._communicator = None
        self._smaller.clear()

    def _failure(self) -> Exception | None:
        if self._pending.failure is None and (trouble := self._trouble()) is not None:
            return BrokenGroupError(trouble)
        return self._pending.failure

    def _trouble(self) -> str | None:
        communicator = self._communicator
        return communicator.trouble() if communicator is not None else None

    def _watch(self) -> None:
        while not self._left.wait(_WATCH_SECONDS):
            if (trouble := self._trouble()) is not None:
                self.give_up(trouble)
                return


def _abort(group: Communicator | dist.ProcessGroup) -> None:
    with contextlib.suppress(RuntimeError):  # the device failed; the host will notice
        group.abort()
