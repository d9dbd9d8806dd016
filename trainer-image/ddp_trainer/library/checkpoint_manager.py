"""Decides where the training state comes from when a group has formed, and saves it.

The state comes from memory if any rank holds it: a rank that survived the loss of another is ahead
of every checkpoint, or at most one step behind. Only if all ranks are fresh does rank 0 read the
newest checkpoint and send it to the others; no other rank needs to see the directory.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import NoReturn

from ddp_trainer.checkpoints.checkpoint import Checkpoint
from ddp_trainer.checkpoints.saver import LOG_AFTER_SECONDS, LOG_EVERY_SECONDS, Saver
from ddp_trainer.collectives.group import Group
from ddp_trainer.exit_codes import (
    ConfigurationError,
    LeavingError,
    LostPeerError,
    StoppedError,
)
from ddp_trainer.library.state_transfer import transfer_state
from ddp_trainer.run.stop import StopSignal
from ddp_trainer.run.train_state import TrainState
from ddp_trainer.telemetry.requests.checkpoint import CheckpointRequest

_NOTHING: list[int] = []
"""Progress of a rank without a state; less than any other."""

_logger = logging.getLogger(__name__)


class CheckpointManager:
    """Restores and saves a run; all ranks must call the same methods at the same steps."""

    def __init__(
        self,
        saver: Saver | None,
        every_steps: int,
        *,
        ask_to_save: Callable[[], CheckpointRequest | None] = lambda: None,
    ) -> None:
        """Save with `saver` while this is rank 0, every `every_steps` steps if that is not 0.

        `saver`: None if no checkpoint directory is set. `ask_to_save`: announces that saves can be
        requested here; returns None if nothing can request one.
        """
        self._own_saver = saver
        self._ask_to_save = ask_to_save
        self._every_steps = every_steps
        self._leads = False
        self._saver: Saver | None = None
        """None on other ranks than 0 too."""
        self._request: CheckpointRequest | None = None
        # Rank 0's value counts once there is a group: ranks that disagree on whether they confirm a
        # save to each other would wait for ever.
        self._keeps = False

    def lead(self, leads: bool) -> None:
        """Note whether this rank is rank 0 of the group that has formed.

        Raises:
            SupersededError: a newer group has replaced the one in which it was.
        """
        if leads and self._own_saver is not None:
            self._own_saver.claim()  # each time: the generation may have changed
        if leads == self._leads:
            return
        self._leads = leads
        self._saver = self._own_saver if leads else None
        if self._saver is not None:
            self._saver.take_over()
            self._request = self._ask_to_save()
        elif leads:
            _logger.warning("DDP_CHECKPOINT_DIR is not set: nothing will be saved")
        elif self._request is not None:
            self._request.look_away()
            self._request = None

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest good checkpoint; None on other ranks than 0."""
        return self._saver.directory.newest if self._saver is not None else None

    @property
    def newest(self) -> str | None:
        """The newest good checkpoint as text; None on other ranks than 0."""
        return str(self.checkpoint) if self.checkpoint is not None else None

    def agree(self, run: TrainState, group: Group) -> bool:
        """Give every rank the state of the most advanced one; return whether this rank had it.

        Raises:
            ConfigurationError: the checkpoint is of another model or optimizer.
            SupersededError: on rank 0, if a newer group already saves.
        """
        self.lead(group.rank == 0)
        self._keeps = group.sum(float(self._saver is not None))[0] > 0
        run_is_new = run.is_fresh
        mine = _NOTHING if run_is_new else run.progress()
        all_progress = [json.loads(each) for each in group.gather(json.dumps(mine).encode())]
        most = max(all_progress)
        if most == _NOTHING:
            self._load(run, group)
        else:
            lacking = {rank for rank, progress in enumerate(all_progress) if progress != most}
            self._take_over(run, group, source=all_progress.index(most), lacking=lacking)
        run.is_fresh = False
        if self._saver is not None:
            self._saver.watch(run, again=run_is_new or mine != most)
        return not run_is_new and mine == most

    def is_due(self, step: int) -> bool:
        """Return whether a save is due after `step` by its number; the same on all ranks."""
        return self._every_steps > 0 and step % self._every_steps == 0

    def is_overdue(self) -> bool:
        """Return whether rank 0 wants to save because of the time or a request."""
        if self._saver is None:
            return False
        return self._saver.is_overdue() or (self._request is not None and self._request.is_open())

    def save(self, run: TrainState) -> None:
        """Save the run on rank 0, by default in the background; wait for no other rank.

        A failure is logged; training continues and keeps the previous checkpoint.
        """
        if self._saver is not None:
            if self._request is not None:
                self._request.answer()
            self._saver.save(run)

    def evaluated(self, run: TrainState, score: float) -> None:
        """Save the run on rank 0 if its score is better than that of every kept checkpoint."""
        if self._saver is not None:
            self._saver.save_if_best(run, score)

    def save_alone(self, run: TrainState, *, within_seconds: float) -> None:
        """Save the run on rank 0 and wait for the save, but for no other rank.

        Raises:
            OSError: rank 0 could not write.
        """
        if self._saver is not None:
            self._saver.save_for_certain(run, within_seconds=within_seconds)

    def save_for_certain(
        self, run: TrainState, group: Group, *, within_seconds: float | None = None
    ) -> None:
        """Save the run on rank 0; all ranks wait for it, longer than for any collective.

        `within_seconds`: time until this process must end; None: no limit until it must stop.

        Raises:
            OSError: rank 0 could not write, or not in time.
            LostPeerError: on the other ranks, if rank 0 failed.
        """
        if not self._keeps:
            return
        failure: Exception | None = None
        waiting = _Waiting(group)
        if self._saver is not None:
            try:
                self._saver.save_for_certain(
                    run, within_seconds=within_seconds, meanwhile=waiting.go_on
                )
            except Exception as error:  # of any kind: the others must not wait in vain
                failure = error
            has_failed = waiting.end(failed=failure is not None)
        else:
            has_failed = waiting.until_end()
        if has_failed:
            raise failure or LostPeerError("rank 0 could not save the last checkpoint")

    def save_and_stop(
        self, run: TrainState, group: Group, stop: StopSignal, *, total_steps: int | None
    ) -> NoReturn:
        """Save because some rank must stop; then stop too, or leave the group it leaves.

        Raises:
            StoppedError: this rank must stop; the state is saved.
            LeavingError: another rank must stop and leaves.
            OSError, LostPeerError: this rank must stop, and the state could not be saved.
        """
        try:
            self.save_for_certain(run, group, within_seconds=stop.within_seconds)
        except (OSError, LostPeerError):
            if stop.told():
                raise
            # Logged where it happened. This rank continues and has the state in memory.
        if stop.told():
            of_all = f" of {total_steps}" if total_steps is not None else ""
            raise StoppedError(f"told to stop at step {run.position.step}{of_all}")
        raise LeavingError("another pod is stopping")

    def close(self) -> None:
        """Wait for a save in progress; this rank trains no more."""
        if self._own_saver is not None:  # perhaps from the time when this was rank 0
            self._own_saver.close()

    def _take_over(self, run: TrainState, group: Group, *, source: int, lacking: set[int]) -> None:
        what, lacks_it = "all ranks have it", group.rank in lacking
        if lacking:
            begin = time.monotonic()
            megabytes = transfer_state(run, group, source=source, lacks_it=lacks_it) / 1e6
            seconds = time.monotonic() - begin
            what = f"rank {source}'s state, {megabytes:.1f} MB in {seconds:.2f} s"
        if self._saver is not None and self._saver.directory.newest is None:
            self._saver.directory.look()
        if group.rank == 0 or lacks_it:
            _logger.info("continuing from memory at step %d: %s", run.position.step, what)

    def _load(self, run: TrainState, group: Group) -> None:
        if not self._keeps:
            self._start(run, group)
            return
        found, trouble = False, ""
        if self._saver is not None:
            loaded = self._saver.directory.load()
            found = loaded is not None
            try:
                if loaded is not None:
                    run.load_state_dict(loaded.unpack())
            except (RuntimeError, KeyError, ValueError) as error:
                trouble = (
                    f"checkpoint {self.newest or ''} does not fit this run: choose another "
                    f"checkpoint directory, or the workload that wrote it ({error})"
                )
            group.broadcast(json.dumps([found, trouble]).encode())
        else:
            found, trouble = json.loads(group.broadcast(None))
        if trouble:
            raise ConfigurationError(trouble)
        if not found:
            self._start(run, group)
            return
        transfer_state(run, group, source=0, lacks_it=group.rank != 0)
        if group.rank == 0:
            _logger.info("resuming from checkpoint %s", self.newest)

    @staticmethod
    def _start(run: TrainState, group: Group) -> None:
        """Start from rank 0's state: other ranks may have drawn other weights."""
        if group.rank == 0 and run.is_torn:
            raise RuntimeError(
                "all ranks that had the state were lost during its transfer, and there is no "
                "checkpoint: starting again"
            )
        transfer_state(run, group, source=0, lacks_it=group.rank != 0)


class _Waiting:
    """Lets ranks wait for rank 0 by a series of short collectives."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._error: Exception | None = None

    def go_on(self) -> None:
        """On rank 0: let the others continue to wait. `end` raises an error of the group."""
        if self._error is None:
            try:
                self._group.sum(0.0, 0.0)
            except Exception as error:
                self._error = error

    def end(self, *, failed: bool) -> bool:
        """On rank 0: tell the others how it ended; returns `failed`.

        Raises:
            Exception: what broke the group, perhaps long before.
        """
        if self._error is not None:
            raise self._error
        self._group.sum(1.0, float(failed))
        return failed

    def until_end(self) -> bool:
        """On the others: wait for the end; returns whether rank 0 failed."""
        begin = time.monotonic()
        log_at = begin + LOG_AFTER_SECONDS
        while True:
            ended, failed = self._group.sum(0.0, 0.0)
            if ended > 0:
                return failed > 0
            if time.monotonic() >= log_at:
                _logger.info(
                    "rank 0 has been saving for %.0f s: waiting for it", time.monotonic() - begin
                )
                log_at += LOG_EVERY_SECONDS
