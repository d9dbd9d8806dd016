"""The life of one rank: train in one group after another, say in one exit code how it ended."""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import NoReturn

from ddp_trainer.checkpoints.checkpoint import CheckpointDirectory
from ddp_trainer.checkpoints.saver import Saver
from ddp_trainer.devices.accelerator import prepare_nccl
from ddp_trainer.exit_codes import (
    BrokenGroupError,
    ConfigurationError,
    ExitCode,
    LostPeerError,
    StoppedError,
)
from ddp_trainer.loop.keeper import Keeper
from ddp_trainer.loop.training import Training, staged
from ddp_trainer.membership.failures import is_lost_peer
from ddp_trainer.membership.heartbeat import interval
from ddp_trainer.membership.network import hurry_the_resolver
from ddp_trainer.membership.world import World
from ddp_trainer.run.stop import StopSignal
from ddp_trainer.settings.environment import Environment
from ddp_trainer.settings.options import Options
from ddp_trainer.system.logs import end_process
from ddp_trainer.telemetry.termination import RankReport

_FAREWELL_SECONDS = 30.0
"""How long a finished rank waits for one that died before it could know that all is saved."""

_logger = logging.getLogger(__name__)


def run_rank(environment: Environment, options: Options) -> ExitCode:
    """Train as this rank; returns how it ended, which the rank's report tells in words."""
    report = RankReport(os.environ, rank=environment.rank)
    if options.heartbeat_timeout_seconds > 0:
        report.start_pulse(interval(options.heartbeat_timeout_seconds))
    code = ExitCode.DONE
    error: Exception | None = None
    try:
        _train(environment, options, report)
    except Exception as failure:
        code, error = _meaning(failure), failure
        if code is ExitCode.LOST_PEER and report.known.finished:
            code, error = ExitCode.DONE, None  # whoever has finished needs nobody any more
    if code is ExitCode.FAILURE:
        _logger.error("failed", exc_info=error)
    elif error is not None:
        _logger.log(
            logging.INFO if code is ExitCode.STOPPED else logging.ERROR, "%s", _sentence(error)
        )
    report.update(
        error=_sentence(error) if code not in (ExitCode.DONE, ExitCode.STOPPED) else None,
        exit_code=int(code),
    )
    return code


def _train(environment: Environment, options: Options, report: RankReport) -> None:
    stop = StopSignal(within_seconds=options.stop_within_seconds)
    prepare_nccl()
    hurry_the_resolver()
    world = World(
        environment,
        group_timeout_seconds=options.group_timeout_seconds,
        heartbeat_timeout_seconds=options.heartbeat_timeout_seconds,
        device_ids=options.hardware.device_ids,
        on_stuck=partial(_end_stuck, report),
    )
    saver = _saver(environment, options, stop)
    keeper = Keeper(saver, options.checkpoint_every_steps, rank=environment.rank)
    begin = partial(Training.begin, environment, options, report, keeper, device=world.device)
    in_the_group = options.staging.stage == "broadcast"
    # Before meeting anybody where it can be: wrong options need not wait for other ranks.
    training = None if in_the_group else begin(staged(environment, options))
    patience = _Patience(options.max_reforms)
    timeout_seconds = options.rendezvous_timeout_seconds
    try:
        while True:
            try:
                with world.formed(timeout_seconds=timeout_seconds, told_to_stop=stop.told) as group:
                    if in_the_group:  # each time: one of the ranks may be new, and without data
                        data = staged(environment, options, group)
                        training = training or begin(data)
                    assert training is not None
                    keeper.agree(training.run, group)
                    stop.listen()  # from here on there is something to save
                    training.go_on(group, options, keeper, stop)
                    timeout_seconds = min(timeout_seconds, _FAREWELL_SECONDS)
                    group.barrier()
                    return
            except BrokenGroupError as error:
                step = training.pause() if training is not None else 0
                patience.tried(step=step, reason=str(error))
            except StoppedError:
                # Where the group is gone, the others cannot agree on a step; this rank's is as
                # good.
                if training is not None and not training.run.is_fresh:
                    keeper.save_alone(training.run, within_seconds=stop.within_seconds)
                raise
    finally:
        keeper.close()
        if training is not None:
            training.progress.close()


def _end_stuck(report: RankReport, what: str) -> NoReturn:
    """End this process from another thread than the one that does not come back."""
    error = f"this process cannot go on: {what}"
    _logger.error("%s", error)
    report.update(error=error, exit_code=int(ExitCode.FAILURE))
    end_process(ExitCode.FAILURE)


def _saver(environment: Environment, options: Options, stop: StopSignal) -> Saver | None:
    root = environment.placement.checkpoint_dir
    if environment.rank != 0 or root is None:
        return None
    directory = CheckpointDirectory(
        root, keep=options.keep_checkpoints, keep_best=options.keep_best
    )
    return Saver(directory, options, stop=stop)


class _Patience:
    """How often a group may break before it is no use to form it again."""

    def __init__(self, max_reforms: int) -> None:
        self._max_reforms = max_reforms
        self._step = 0
        self._in_a_row = 0

    def tried(self, *, step: int, reason: str) -> None:
        if step > self._step:
            self._step, self._in_a_row = step, 0
        if self._in_a_row >= self._max_reforms:
            raise LostPeerError(
                f"gave up after {self._in_a_row} re-forms in a row without progress: {reason} "
                "(--max-reforms sets how many)"
            )
        self._in_a_row += 1
        _logger.info(
            "the group broke at step %d (%s): forming it anew from memory, "
            "%d of at most %d times without progress",
            step,
            reason,
            self._in_a_row,
            self._max_reforms,
        )


def _meaning(error: Exception) -> ExitCode:
    if isinstance(error, StoppedError):
        return ExitCode.STOPPED
    if isinstance(error, ConfigurationError):
        return ExitCode.CONFIGURATION
    return ExitCode.LOST_PEER if is_lost_peer(error) else ExitCode.FAILURE


def _sentence(error: Exception | None) -> str:
    """The error in one line: `DiskFull: no space left` rather than a traceback."""
    first_line = next(iter(str(error).splitlines()), "")
    if isinstance(error, ConfigurationError | StoppedError):
        return first_line
    return f"{type(error).__name__}: {first_line}"
