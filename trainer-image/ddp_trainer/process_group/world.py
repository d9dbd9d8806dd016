"""Forms the process group, watches it, breaks it, and forms the next one.

However a peer is lost, the training code sees one error, `BrokenGroupError`, and does one thing: it
forms the group again. The process, its model and its optimizer stay as they are.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from ddp_trainer.collectives.group import Group
from ddp_trainer.devices.accelerator import accelerator_for
from ddp_trainer.devices.hardware import pin_device
from ddp_trainer.exit_codes import (
    BrokenGroupError,
    DifferingReplicasError,
    ExitCode,
    FlippedBitsError,
    LeavingError,
    StoppedError,
)
from ddp_trainer.process_group.assignment import AssignmentFile
from ddp_trainer.process_group.connection import Connection
from ddp_trainer.process_group.end_of_training import ScriptProgress
from ddp_trainer.process_group.failures import is_lost_device, is_lost_peer, reason
from ddp_trainer.process_group.heartbeat import Heartbeat
from ddp_trainer.process_group.rendezvous.announcement import AnnouncedAddress
from ddp_trainer.process_group.rendezvous.membership import Membership
from ddp_trainer.process_group.rendezvous.rendezvous import Rendezvous
from ddp_trainer.process_group.teardown import release_last_group
from ddp_trainer.settings.environment import Environment
from ddp_trainer.system.logs import end_process
from ddp_trainer.system.watchdog import Watchdog

_LAST_BEAT_SECONDS = 1.0
"""A store that is alive answers much faster."""
_IN_ORDER = (LeavingError, StoppedError, DifferingReplicasError, FlippedBitsError)
"""Errors with which all ranks leave a group at the same point."""

_logger = logging.getLogger(__name__)


def _end_stuck(what: str) -> None:
    _logger.error("this process cannot continue: %s", what)
    end_process(ExitCode.FAILURE)


class GroupFormer:
    """The ranks of the job as this process meets them, as often as needed; one for each process."""

    def __init__(
        self,
        environment: Environment,
        *,
        group_timeout_seconds: float,
        heartbeat_timeout_seconds: float,
        device_ids: tuple[int, ...] | None = None,
        on_stuck: Callable[[str], object] = _end_stuck,
        script_progress: Callable[[], ScriptProgress] = tuple,
    ) -> None:
        """Pin this rank's device; no other rank is contacted yet.

        `heartbeat_timeout_seconds`: a rank that is silent for this time counts as lost; 0: never.
        `device_ids`: the GPU of each local rank; None: the one with the same number. `on_stuck`
        must end the process when an accelerator does not return; it receives the reason.
        `script_progress`: returns the progress of this rank's script.

        Raises:
            ConfigurationError: this pod lacks GPUs that its ranks need.
        """
        self._group_timeout = timedelta(seconds=group_timeout_seconds)
        self._heartbeat_timeout_seconds = heartbeat_timeout_seconds
        self._rendezvous = Rendezvous(
            environment, AnnouncedAddress.from_env(os.environ), AssignmentFile.from_env(os.environ)
        )
        self.current_assignment = self._rendezvous.current_assignment
        """The assignment of this rank; it may change from group to group."""
        self.device = pin_device(
            environment.placement, local_rank=environment.local_rank, device_ids=device_ids
        )
        self._accelerator = accelerator_for(environment.placement, self.device)
        self._on_stuck = on_stuck
        self._script_progress = script_progress

    @contextmanager
    def formed(
        self, *, timeout_seconds: float, told_to_stop: Callable[[], bool] = lambda: False
    ) -> Iterator[Group]:
        """Meet the other ranks within the timeout and form the group; take it down at the end.

        Raises:
            BrokenGroupError: a rank was lost; the error may surface anywhere in the block. Form
                the group again.
            RendezvousTimeoutError: other ranks did not arrive in time.
            LeftError: this pod is no longer in the group.
            StoppedError: `told_to_stop` returned True during the wait.
            ConfigurationError: other ranks have other settings.
            LostDeviceError, or torch's own error: this process can no longer use its device.
        """
        release_last_group()
        begin = time.monotonic()
        membership = self._rendezvous.meet(
            timeout_seconds=timeout_seconds, told_to_stop=told_to_stop
        )
        watchdog = Watchdog(self._on_stuck)
        connection = Connection(
            membership,
            self.device,
            self._accelerator,
            watchdog,
            told_to_stop=told_to_stop,
            script_progress=self._script_progress,
        )
        heartbeat: Heartbeat | None = None
        try:
            # Before the first contact: a frozen rank could block the others there for ever.
            heartbeat = self._start_heartbeat(membership, connection)
            group = connection.open(self._group_timeout)
            if group.rank == 0:
                _logger.info(
                    "group of %d ranks formed in %.2f s: %s, interface %s",
                    group.size,
                    time.monotonic() - begin,
                    self.current_assignment.environment.placement.backend,
                    os.environ.get("GLOO_SOCKET_IFNAME", "gloo's own choice"),
                )
            yield group
        except BaseException as error:
            if heartbeat is not None:
                heartbeat.stop()
            if is_lost_device(error):
                # The device is not used again, not even to leave the group: the others notice when
                # this process ends.
                connection.cut()
                raise
            connection.abort(in_order=isinstance(error, _IN_ORDER))
            cause = connection.cause_of(error)
            if isinstance(cause, Exception) and is_lost_peer(cause):
                connection.expect_device()
                raise BrokenGroupError(reason(cause)) from error
            if cause is not error:
                raise cause from error
            raise
        else:
            # torch aborts if a thread is still in a request when the interpreter ends.
            heartbeat.stop(wait_seconds=_LAST_BEAT_SECONDS)
            connection.close()
        finally:
            watchdog.over()

    def _start_heartbeat(self, membership: Membership, connection: Connection) -> Heartbeat:
        heartbeat = Heartbeat(
            membership,
            rank=membership.rank,
            size=membership.size,
            timeout_seconds=self._heartbeat_timeout_seconds,
            on_lost=connection.give_up,
            is_broken=self.current_assignment.is_broken,
            script_progress=self._script_progress,
        )
        heartbeat.start()
        return heartbeat
