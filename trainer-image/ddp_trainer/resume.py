"""Where a run's state comes from when a group has formed, and where it is kept.

From memory wherever any rank holds it: a rank that trained on while another one died is ahead of
every checkpoint, or at most a step behind. Only when all ranks are fresh is a checkpoint read, by
rank 0, which decides what is newest and tells the others; no other rank needs to see the directory.
"""

from __future__ import annotations

import logging
import time

from ddp_trainer.checkpoint import Checkpoint, CheckpointDirectory, DamagedError
from ddp_trainer.exit_codes import ConfigurationError, LostPeerError
from ddp_trainer.group import Group
from ddp_trainer.state import Run

_NOTHING = -1
"""Stands for the step of a rank that holds no state."""

_logger = logging.getLogger(__name__)


class Keeper:
    """Restores and saves a run; all ranks must call the same methods at the same steps."""

    def __init__(self, directory: CheckpointDirectory | None, *, rank: int) -> None:
        self._directory = directory if rank == 0 else None
        self._rank = rank
        # Rank 0's word counts, once there is a group: were ranks to disagree whether to confirm a
        # save to each other, they would wait for ever.
        self._keeps = self._directory is not None
        if rank == 0 and directory is None:
            _logger.warning("DDP_CHECKPOINT_DIR is not set: nothing will be saved")

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest good checkpoint; None on other ranks than 0."""
        return self._directory.newest if self._directory is not None else None

    @property
    def newest(self) -> str | None:
        """The newest good checkpoint, for people; None on other ranks than 0."""
        return str(self.checkpoint) if self.checkpoint is not None else None

    def agree(self, run: Run, group: Group) -> None:
        """Put the run of every rank where the most advanced one is; the same state on all.

        Raises:
            ConfigurationError: the checkpoint is of another model or optimizer.
        """
        self._keeps = group.sum(float(self._directory is not None))[0] > 0
        mine = _NOTHING if run.is_fresh else run.position.step
        steps = [int(step) for step in group.gather(str(mine).encode())]
        if max(steps) == _NOTHING:
            self._load(run, group)
        else:
            self._take_over(run, group, source=steps.index(max(steps)), steps=steps)
        run.is_fresh = False

    def save(self, run: Run) -> None:
        """Save the run on rank 0, unless its step is saved already; waits for no other rank.

        A failure is logged, and training goes on with the checkpoint before.
        """
        self._write(run)

    def save_for_certain(self, run: Run, group: Group) -> None:
        """The same, and all ranks know that it is done.

        Raises:
            OSError: rank 0 could not write.
            DamagedError: rank 0 read back something else than it wrote.
            LostPeerError: on the other ranks, when rank 0 failed.
        """
        if not self._keeps:
            return
        failure = self._write(run)
        if group.sum(float(failure is not None))[0] > 0:
            raise failure or LostPeerError("rank 0 could not save the last checkpoint")

    def _take_over(self, run: Run, group: Group, *, source: int, steps: list[int]) -> None:
        begin = time.monotonic()
        state = group.broadcast(run.serialise() if group.rank == source else None, source=source)
        if group.rank != source:
            run.restore(state)
        if self._directory is not None and self._directory.newest is None:
            self._directory.look()
        if group.rank == 0 or steps[group.rank] == _NOTHING:
            _logger.info(
                "going on from memory at step %d: rank %d's state, %.1f MB in %.2f s",
                run.position.step,
                source,
                len(state) / 1e6,
                time.monotonic() - begin,
            )

    def _load(self, run: Run, group: Group) -> None:
        if not self._keeps:
            return
        loaded = self._directory.load() if self._directory is not None else None
        state = group.broadcast(loaded)
        if not state:
            return
        try:
            run.restore(state)
        except (RuntimeError, KeyError, ValueError) as error:
            raise ConfigurationError(
                f"checkpoint {self.newest or ''} does not fit this run: choose another checkpoint "
                f"directory, or the workload that wrote it ({error})"
            ) from error
        if group.rank == 0:
            _logger.info("resuming from checkpoint %s", self.newest)

    def _write(self, run: Run) -> OSError | DamagedError | None:
        if self._directory is None:
            return None
        step = run.position.step
        newest = self._directory.newest
        if newest is not None and newest.step == step:
            return None
        begin = time.monotonic()
        try:
            saved = self._directory.save(run.serialise(), step=step)
        except (OSError, DamagedError) as error:
            _logger.error(
                "saving the checkpoint of step %d failed (%s); the newest good one is %s",
                step,
                error,
                self.newest or "none",
            )
            return error
        _logger.info("saved checkpoint %s in %.2f s", saved, time.monotonic() - begin)
        return None
