"""Decides when a run is saved, and how long training waits for it.

By default training waits only for a copy in memory. A thread writes the copy to the disk while
training continues, and the next save waits for the previous one. A rank that must stop has little
time. It then either completes a save in progress or cancels it for the newer state.

Only rank 0 saves.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ddp_trainer.checkpoints.background_save import BackgroundSave
from ddp_trainer.checkpoints.checkpoint import Checkpoint, CheckpointDirectory
from ddp_trainer.checkpoints.claim import Claim
from ddp_trainer.checkpoints.frozen_weights import FrozenWeights
from ddp_trainer.checkpoints.snapshot import Snapshot
from ddp_trainer.checkpoints.storage import Transfer
from ddp_trainer.run.stop import StopSignal
from ddp_trainer.run.train_state import TrainState
from ddp_trainer.settings.environment import Placement
from ddp_trainer.settings.options import Options
from ddp_trainer.system.buffers import size_of

_LOOK_SECONDS = 0.05
"""Time between checks, during a wait, of whether this rank must stop."""
LOG_AFTER_SECONDS = 5.0
"""A wait that takes this long is logged."""
LOG_EVERY_SECONDS = 60.0
"""Time between further log lines."""
_MEANWHILE_SECONDS = 1.0
"""Time between calls of `meanwhile` during a wait."""

_logger = logging.getLogger(__name__)


class Saver:
    """Saves one run to one directory, one state after the other."""

    def __init__(
        self, directory: CheckpointDirectory, options: Options, *, stop: StopSignal
    ) -> None:
        self.directory = directory
        self._every_seconds = options.checkpoint_every_seconds
        self._timeout_seconds = options.checkpoint_timeout_seconds
        self._in_background = not options.checkpoint_sync
        self._stop = stop
        self._snapshot = Snapshot()
        self._frozen: FrozenWeights | None = None
        self._current: BackgroundSave | None = None
        self._last_time = time.monotonic()

    def claim(self) -> None:
        """Keep processes of older groups from saving.

        Raises:
            SupersededError: a newer group saves here.
        """
        self.directory.claim()

    def take_over(self) -> None:
        """Begin to save here; checkpoints of other processes are not known yet."""
        self.directory.newest = None
        self._frozen = None
        self._last_time = time.monotonic()

    def watch(self, run: TrainState, *, again: bool) -> None:
        """Note the weights before the next step, to detect later which of them are frozen.

        `again`: discard earlier notes, because the run received its state from elsewhere.
        """
        if self._frozen is None or again:
            self._frozen = FrozenWeights.of(run)

    def is_overdue(self) -> bool:
        """Return whether the last save began long enough ago for another one."""
        seconds = time.monotonic() - self._last_time
        return self._every_seconds > 0 and seconds >= self._every_seconds

    def save(self, run: TrainState, *, score: float | None = None) -> None:
        """Save the run, unless its step is already saved; a failure is only logged.

        Returns when training may continue. `score` is stored with the checkpoint.

        Raises:
            SupersededError: a newer group saves here.
        """
        self.directory.check()
        self._last_time = time.monotonic()
        step = run.position.step
        last = self._current
        if last is not None and not self._wait(last, until=self._limit(last), for_stop=False):
            _logger.log(
                logging.INFO if self._stop.told() else logging.ERROR,
                "not saving step %d: the save of step %d is still in progress after %.1f s",
                step,
                last.step,
                time.monotonic() - last.begin,
            )
            return
        if self._is_saved(step):
            if score is not None:  # only the score is missing
                self._begin(None, step=step, score=score)
        elif self._in_background:
            self._begin(self._snapshot.take(self._state_of(run)), step=step, score=score)
        else:
            save = self._begin(self._state_of(run), step=step, score=score)
            if not self._wait(save, until=self._limit(save)):
                self._give_up(save)

    def save_if_best(self, run: TrainState, score: float) -> None:
        """Save the run if its score (higher is better) beats that of every kept checkpoint."""
        try:
            is_best = self.directory.is_best(score)
        except OSError as error:
            _logger.error("not saving for the score: %s", error)
            return
        if is_best:
            self.save(run, score=score)

    def save_for_certain(
        self,
        run: TrainState,
        *,
        within_seconds: float | None = None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Save the run and wait until that is done; the run must not change meanwhile.

        This may take longer than other saves, because without it the last steps are lost and a
        restarted run would fail in the same way. `within_seconds`: time until the process must end;
        None: no limit until it must stop. `meanwhile` is called about once a second.

        Raises:
            OSError: it could not be written, or not in time.
            SupersededError: a newer group saves here.
        """
        self.directory.check()
        until = time.monotonic() + (math.inf if within_seconds is None else within_seconds)
        step = run.position.step
        last = self._current
        if last is not None and not self._overtakes(last, step, until=until):
            self._expect(last, step, until=until, meanwhile=meanwhile)
        if not self._is_saved(step):
            save = self._begin(self._state_of(run), step=step)
            self._expect(save, step, until=until, meanwhile=meanwhile)
            if save.failure is not None:
                raise save.failure

    def close(self) -> None:
        """Wait for a save in progress before the process ends, with the time limit of a stop."""
        last = self._current
        until = time.monotonic() + self._stop.within_seconds
        if last is not None and not self._wait(last, until=until):
            self._give_up(last)

    def _overtakes(self, last: BackgroundSave, step: int, *, until: float) -> bool:
        """Return whether the last save must be cancelled to leave time for that of `step`."""
        if last.step == step or last.ended():
            return False
        left = min(until, self._stop.deadline) - time.monotonic()
        return last.should_be_overtaken(seconds_left=left)

    def _expect(
        self, save: BackgroundSave, step: int, *, until: float, meanwhile: Callable[[], None]
    ) -> None:
        if not self._wait(save, until=until, meanwhile=meanwhile):
            self._give_up(save)
            raise TimeoutError(
                f"step {step} could not be saved in time; "
                f"the newest good checkpoint is {self.directory.newest or 'none'}"
            )

    def _state_of(self, run: TrainState) -> dict[str, Any]:
        """Return the run's state without frozen weights, which are not copied before a save."""
        self.watch(run, again=False)
        assert self._frozen is not None
        state, self._frozen = self._frozen.split(run)
        return state

    def _begin(self, state: Any, *, step: int, score: float | None = None) -> BackgroundSave:
        frozen = self._frozen

        def save(transfer: Transfer) -> Checkpoint:
            return self.directory.save(
                partial(torch.save, state),
                step=step,
                transfer=transfer,
                score=score,
                frozen=frozen,
            )

        last = self._current
        if last is not None and not last.ended():
            # The state that it writes may change from now on, so it must never complete.
            last.cancel()
            _logger.warning("cancelling the save of step %d for that of step %d", last.step, step)
        size = size_of(state)
        if frozen is not None:
            size += frozen.pending_bytes * 3 // 2  # they are also read for the fingerprint
        self._current = BackgroundSave(save, step=step, size_bytes=size)
        return self._current

    def _wait(
        self,
        save: BackgroundSave,
        *,
        until: float,
        for_stop: bool = True,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> bool:
        """Wait for a save; return False when the time is up. A stop signal shortens the time.

        Without `for_stop`, a stop signal ends the wait at once.
        """
        begin = time.monotonic()
        log_at, meanwhile_at = begin + LOG_AFTER_SECONDS, begin + _MEANWHILE_SECONDS
        while not save.ended(within_seconds=_LOOK_SECONDS):
            now = time.monotonic()
            end = min(until, self._stop.deadline if for_stop else self._stop.told_at)
            if now >= end:
                return False
            if now >= log_at:
                self._log_wait(save, seconds_left=end - now)
                log_at = now + LOG_EVERY_SECONDS
            if now >= meanwhile_at:
                meanwhile()
                meanwhile_at = time.monotonic() + _MEANWHILE_SECONDS
        return True

    def _log_wait(self, save: BackgroundSave, *, seconds_left: float) -> None:
        if seconds_left < math.inf:
            limit = f"giving up in {seconds_left:.0f} s"
        else:
            limit = (
                "no time limit but the pod's grace period (after a stop signal: "
                f"{self._stop.within_seconds:g} s)"
            )
        seconds = time.monotonic() - save.begin
        _logger.info(
            "waiting for the save of step %d: %.0f%% after %.0f s; %s",
            *(save.step, 100 * save.fraction, seconds, limit),
        )

    def _limit(self, save: BackgroundSave) -> float:
        return save.begin + self._timeout_seconds

    def _give_up(self, save: BackgroundSave) -> None:
        save.cancel()
        _logger.error(
            "gave up saving step %d after %.1f s; the newest good checkpoint is %s",
            save.step,
            time.monotonic() - save.begin,
            self.directory.newest or "none",
        )

    def _is_saved(self, step: int) -> bool:
        newest = self.directory.newest
        return newest is not None and newest.step == step


def saver_of(
    placement: Callable[[], Placement], options: Options, stop: StopSignal
) -> Saver | None:
    """Return the saver for the time when this process is rank 0; None without a directory.

    `placement`: returns the present placement.
    """
    root = placement().checkpoint_dir
    if root is None:
        return None
    directory = CheckpointDirectory(
        root,
        keep=options.keep_checkpoints,
        keep_best=options.keep_best,
        claim=Claim(root, placement),
    )
    return Saver(directory, options, stop=stop)
