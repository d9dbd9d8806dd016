"""The life of one rank: train in one group after another, say in one exit code how it ended."""

from __future__ import annotations

import logging
import os
from functools import partial

from ddp_trainer.checkpoints.saver import saver_of
from ddp_trainer.devices.accelerator import prepare_nccl
from ddp_trainer.exit_codes import (
    BrokenGroupError,
    ExitCode,
    StoppedError,
)
from ddp_trainer.library.endings import end_stuck, sentence, tell
from ddp_trainer.library.keeper import Keeper
from ddp_trainer.library.progress import FAREWELL_SECONDS
from ddp_trainer.loop.training import Training, staged
from ddp_trainer.membership.heartbeat import interval
from ddp_trainer.membership.network import hurry_the_resolver
from ddp_trainer.membership.patience import Patience
from ddp_trainer.membership.world import World
from ddp_trainer.run.stop import StopSignal
from ddp_trainer.settings.environment import Environment
from ddp_trainer.settings.options import Options
from ddp_trainer.telemetry.termination import RankReport

_logger = logging.getLogger(__name__)


def run_rank(environment: Environment, options: Options) -> ExitCode:
    """Train as this rank; returns how it ended, which the rank's report tells in words."""
    report = RankReport(os.environ, rank=environment.rank)
    if options.heartbeat_timeout_seconds > 0:
        report.start_pulse(interval(options.heartbeat_timeout_seconds))
    error: Exception | None = None
    try:
        _train(environment, options, report)
    except Exception as failure:
        error = failure
    code = tell(report, error)
    if code is ExitCode.FAILURE:
        _logger.error("failed", exc_info=error)
    elif code is not ExitCode.DONE:
        _logger.log(
            logging.INFO if code is ExitCode.STOPPED else logging.ERROR, "%s", sentence(error)
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
        on_stuck=partial(end_stuck, report),
    )
    saver = saver_of(environment, options, stop)
    keeper = Keeper(saver, options.checkpoint_every_steps, rank=environment.rank)
    begin = partial(Training.begin, environment, options, report, keeper, device=world.device)
    in_the_group = options.staging.stage == "broadcast"
    # Before meeting anybody where it can be: wrong options need not wait for other ranks.
    training = None if in_the_group else begin(staged(environment, options))
    patience = Patience(options.max_reforms)
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
                    timeout_seconds = min(timeout_seconds, FAREWELL_SECONDS)
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
