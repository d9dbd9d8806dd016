"""Saves the state of this rank in the pod's volume in memory.

Training only waits for one copy of the state. The launcher then keeps it and copies it to other
pods.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import time
from functools import cache
from pathlib import Path

import torch

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.memory.file_format import Header, encode
from ddp_trainer.memory.mapped_files import MappedFile, MappedFiles
from ddp_trainer.memory.pausing import EVERY_SECONDS, PauseRequest
from ddp_trainer.memory.progress import StatusFileWriter
from ddp_trainer.memory.state_tree import Flat, flatten
from ddp_trainer.memory.volume import (
    FREE,
    LARGEST_STEP,
    PART,
    SLOTS,
    Key,
    SnapshotName,
    Volume,
    snapshots_in,
)
from ddp_trainer.process_group.current_assignment import CurrentAssignment
from ddp_trainer.settings.environment import Environment

_MIB = 1 << 20
_GIB = 1 << 30
_LONGEST_REFUSAL = 200
_LONGEST_PAUSE_SECONDS = 600.0
"""The launcher ends a pause sooner."""

_logger = logging.getLogger(__name__)


def save(step: int, state: object, *, replicated: bool = False) -> bool:
    """Save this rank's state in memory; return whether it was saved. All ranks call it.

    It is not saved if the job has no `spec.memoryCheckpoint`, if the state is too large, or while
    other pods still copy the newest snapshot. Training can continue in each case. If another pod is
    ready to take the place of one whose node will go, rank 0 waits here until all restart.

    Args:
        step: Steps completed; it increases from call to call. A second call with the same step
            does nothing and returns the same: other ranks may rely on a step that was skipped.
            Steps that ranks of `join` take again are not saved again.
        state: Dicts, lists and tuples of tensors, DTensors, numpy arrays, numbers, strings and
            bytes. Tensors may be on any device.
        replicated: The state is the same in all ranks, as in DDP. Then only the first rank of each
            pod writes it and nothing is copied; the other ranks return False.

    Raises:
        TypeError: the state contains another type; the message says where.
        ValueError: the step is not valid.
        ConfigurationError: a variable that the launcher sets is missing or malformed, or `join`
            saves a sharded model in memory itself.
    """
    saver = _saver()
    if saver is not None and saver.is_reserved:
        raise ConfigurationError(
            "join() saves the sharded model in memory itself: remove ddp_trainer.memory.save()"
        )
    return saver is not None and saver.save(step, state, replicated=replicated)


def follow(assignment: CurrentAssignment) -> Saver | None:
    """Save as a rank of this assignment's group, which may change while the process runs.

    Returns:
        This rank's saver; None: the job has no `spec.memoryCheckpoint`.

    Raises:
        ConfigurationError: a variable that the launcher sets is missing or malformed.
    """
    if (saver := _saver()) is not None:
        saver.assignment, saver.steps_may_repeat = assignment, True
    return saver


@cache
def _saver() -> Saver | None:
    volume = Volume.from_env(os.environ)
    if volume is None:
        return None
    environment = Environment.from_env(os.environ)
    progress = StatusFileWriter.of(environment, os.environ)
    return Saver(volume, CurrentAssignment(environment), progress)


class Saver:
    """Saves the states of one rank."""

    def __init__(
        self,
        volume: Volume,
        assignment: CurrentAssignment,
        progress: StatusFileWriter | None = None,
    ) -> None:
        """`progress`: reports saved steps; None: this rank does not report."""
        self.assignment = assignment
        """Of this rank; snapshots belong to its generation of the group."""
        self.volume = volume
        self.is_reserved = False
        """True: the library saves, so scripts must not."""
        self.steps_may_repeat = False
        """True: ranks may return to an earlier step within a generation of the group."""
        self._progress = progress
        self._pause_request = PauseRequest(volume)
        self._folder = volume.own(assignment.environment.local_rank)
        self._files = MappedFiles(self._folder)
        self._last: tuple[Key, bool] | None = None
        """The key of the last call, and whether it was saved."""
        self._refusal = ""
        """The last one."""

    def save(self, step: int, state: object, *, replicated: bool) -> bool:
        """Save a state, as the function of this name does."""
        if type(step) is not int or not 0 <= step <= LARGEST_STEP:
            raise ValueError(f"step is {step!r:.40}: count from 0 in an int")
        if replicated and self._environment.local_rank != 0:
            return False
        name = self._name(step, replicated=replicated)
        key = name.key
        if self._last is not None and key <= self._last[0]:
            if key == self._last[0]:
                return self._last[1]
            if not self.steps_may_repeat:
                last = self._last[0].step
                raise ValueError(f"step is {step} after step {last}: it must increase")
            # Another file of the same name would differ from its copies.
            _logger.info("no snapshot of step %d: a later one was saved or skipped before", step)
            return False
        flat = flatten(state)
        saved, refusal = self._write(name, flat)
        self._last = key, saved
        if saved and self._progress is not None:
            self._progress.saved(step)
        if refusal and refusal != self._refusal:
            _logger.warning("no snapshot of step %d: %s", step, refusal)
        self._refusal = refusal
        self._report(name, saved, refusal)
        if saved and name.rank == 0:
            self._pause(name)
        return saved

    def _pause(self, name: SnapshotName) -> None:
        """Wait after a snapshot of rank 0 while the launcher requests it."""
        step, until = name.key.step, time.monotonic() + _LONGEST_PAUSE_SECONDS
        if not self._pause_request.includes(step):
            return
        _logger.info("pausing after step %d, so that other pods can take places", step)
        while self._pause_request.includes(step):
            if time.monotonic() > until:
                _logger.warning("paused for %.0f s: continuing", _LONGEST_PAUSE_SECONDS)
                return
            # Again and again, since a datagram can be lost.
            self._report(name, saved=True, refusal="", paused=True)
            time.sleep(EVERY_SECONDS)
        _logger.info("continuing after step %d: the pause was withdrawn", step)

    def skip(self, step: int) -> None:
        """Do not save a sharded state of this step, unless the volume has it.

        Ranks that have saved the step then release it: it cannot be complete.
        """
        name = self._name(step, replicated=False)
        if not (self._folder / str(name)).exists():
            self._report(name, saved=False, refusal="")

    @property
    def _environment(self) -> Environment:
        return self.assignment.environment

    def _name(self, step: int, *, replicated: bool) -> SnapshotName:
        placement = self._environment.placement
        return SnapshotName(
            key=Key(placement.generation, step),
            rank=self._environment.rank,
            world_size=placement.world_size,
            replicated=replicated,
        )

    def _write(self, name: SnapshotName, flat: Flat) -> tuple[bool, str]:
        """Write the file; return whether it was written, and a reason that needs a remedy."""
        header = Header(
            job_uid=self._environment.placement.job_uid,
            name=name,
            time=time.time(),
            tree=flat.tree,
            buffers=flat.buffers,
        )
        begin = encode(header)
        size = len(begin) + header.payload_size
        if refusal := self._too_large(size, name.replicated):
            return False, refusal
        part = self._folder / PART
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if not self._take_slot(part, name):
                return False, ""
            file = self._files.open(part, size)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                return False, (
                    f"the volume of {_text(self.volume.size)} is full: set "
                    "spec.memoryCheckpoint.sizeLimit to a larger size"
                )
            return False, f"rank {name.rank} cannot write to its volume: {error}"[:_LONGEST_REFUSAL]
        _fill(file, begin, flat)
        part.rename(self._folder / str(name))
        return True, ""

    def _too_large(self, size: int, replicated: bool) -> str:
        volume, ranks = self.volume, self._environment.placement.local_world_size
        share = volume.share(local_world_size=ranks, replicated=replicated)
        if size <= share:
            return ""
        needed = volume.needed(size, local_world_size=ranks, replicated=replicated)
        return (
            f"rank {self._environment.rank}'s snapshot has {_text(size)} and its share of the "
            f"volume is {_text(share)}: set spec.memoryCheckpoint.sizeLimit to {_quantity(needed)} "
            "or more"
        )

    def has_room(self) -> bool:
        """Return whether a sharded snapshot can be saved before another one is released."""
        return (self._folder / FREE).exists() or self._held(replicated=False) < SLOTS

    def _take_slot(self, part: Path, name: SnapshotName) -> bool:
        """Provide the file to write to; return False while there is none.

        A part exists if an earlier save of this process failed.
        """
        try:
            (self._folder / FREE).rename(part)
        except FileNotFoundError:
            return part.exists() or self._held(replicated=name.replicated) < SLOTS
        return True

    def _held(self, *, replicated: bool) -> int:
        """Return how many snapshots the volume holds of this rank, including a restored one."""
        own = snapshots_in(self._folder)
        place = self._environment.rank, self._environment.placement.world_size
        restored = [
            other
            for other in snapshots_in(self.volume.restored)
            if other.replicated == replicated
            and (replicated or (other.rank, other.world_size) == place)
        ]
        return len(own) + len(restored)

    def _report(self, name: SnapshotName, saved: bool, refusal: str, paused: bool = False) -> None:
        """Tell the launcher, without waiting for it."""
        message: dict[str, object] = {
            "rank": name.rank,
            "generation": name.key.generation,
            "step": name.key.step,
            "replicated": name.replicated,
            "saved": saved,
        }
        if refusal:
            message["refusal"] = refusal
        if paused:
            message["paused"] = True
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
            try:
                sender.sendto(json.dumps(message).encode(), str(self.volume.socket))
            except OSError as error:
                _logger.debug("the launcher did not receive a report: %s", error)


def _fill(file: MappedFile, begin: bytes, flat: Flat) -> None:
    """Copy the header and all tensors to the file; return when they are there."""
    if flat.gpus:
        file.lock_pages()
    flat.write(begin, file.tensor)
    for device in flat.gpus:
        torch.cuda.current_stream(device).synchronize()


def _text(size: int) -> str:
    return f"{size / _GIB:.1f} GiB" if size >= _GIB else f"{size / _MIB:.1f} MiB"


def _quantity(size: int) -> str:
    """Return a size as a quantity of Kubernetes, rounded up."""
    return f"{-(-size // _GIB)}Gi" if size > 10 * _GIB else f"{-(-size // _MIB)}Mi"
