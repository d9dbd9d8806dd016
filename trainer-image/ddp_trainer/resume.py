"""Joins a run's state to the checkpoints on disk.

Only rank 0 needs to see the checkpoint directory: it decides what is newest and tells the others.
"""

from __future__ import annotations

import logging
import time

from ddp_trainer.checkpoint import CheckpointDirectory, DamagedError
from ddp_trainer.exit_codes import ConfigurationError, LostPeerError
from ddp_trainer.state import Run
from ddp_trainer.world import World

_logger = logging.getLogger(__name__)


class Keeper:
    """Restores and saves a run; all ranks must call the same methods at the same steps."""

    def __init__(self, world: World, directory: CheckpointDirectory | None) -> None:
        self._world = world
        self._directory = directory if world.rank == 0 else None
        # Rank 0's word counts: were ranks to disagree, they would wait for each other for ever.
        self._keeps = world.sum(float(self._directory is not None))[0] > 0
        if not self._keeps and world.rank == 0:
            _logger.warning("DDP_CHECKPOINT_DIR is not set: nothing will be saved")

    @property
    def newest(self) -> str | None:
        """The newest good checkpoint, for people; None on other ranks than 0."""
        found = self._directory.newest if self._directory is not None else None
        return str(found) if found is not None else None

    def resume(self, run: Run) -> None:
        """Put the run where the newest good checkpoint left it, if there is one.

        Raises:
            ConfigurationError: the checkpoint is of another model or optimizer.
        """
        if not self._keeps:
            return
        loaded = self._directory.load() if self._directory is not None else None
        state = self._world.broadcast(loaded)
        if not state:
            return
        try:
            run.restore(state, rank=self._world.rank)
        except (RuntimeError, KeyError, ValueError) as error:
            raise ConfigurationError(
                f"checkpoint {self.newest or ''} does not fit this run: choose another checkpoint "
                f"directory, or the workload that wrote it ({error})"
            ) from error
        if self._world.rank == 0:
            _logger.info("resuming from checkpoint %s", self.newest)

    def save(self, run: Run, *, required: bool = False) -> None:
        """Save the run unless its step is saved already.

        A failure is logged, and training goes on with the checkpoint before; where the save is
        `required`, it is an error.

        Raises:
            OSError: rank 0 could not write what is required.
            DamagedError: rank 0 read back something else than it wrote.
            LostPeerError: on the other ranks, when rank 0 failed.
        """
        if not self._keeps:
            return
        state = run.serialise(self._world)
        failure = self._write(state, step=run.position.step)
        if not required:
            return
        if self._world.sum(float(failure is not None))[0] > 0:
            raise failure or LostPeerError("rank 0 could not save the last checkpoint")

    def _write(self, state: bytes | None, *, step: int) -> OSError | DamagedError | None:
        if self._directory is None or state is None:
            return None
        newest = self._directory.newest
        if newest is not None and newest.step == step:
            return None
        begin = time.monotonic()
        try:
            saved = self._directory.save(state, step=step)
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
