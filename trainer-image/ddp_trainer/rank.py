"""The life of one rank: form the group, train, say in one exit code and report how it ended."""

from __future__ import annotations

import contextlib
import logging
import os

from ddp_trainer import workloads
from ddp_trainer.checkpoint import CheckpointDirectory
from ddp_trainer.config import Environment, Options
from ddp_trainer.exit_codes import (
    ConfigurationError,
    ExitCode,
    RendezvousTimeoutError,
    StoppedError,
)
from ddp_trainer.failures import is_lost_peer
from ddp_trainer.progress import Progress
from ddp_trainer.resume import Keeper
from ddp_trainer.stop import StopSignal
from ddp_trainer.termination import RankReport
from ddp_trainer.train import train
from ddp_trainer.world import formed

_logger = logging.getLogger(__name__)


def run_rank(environment: Environment, options: Options) -> ExitCode:
    """Train as this rank; returns how it ended, which the rank's report tells in words."""
    progress = Progress(RankReport(os.environ), rank=environment.rank)
    code = ExitCode.DONE
    error: Exception | None = None
    try:
        _train(environment, options, progress)
    except Exception as failure:
        code, error = _meaning(failure), failure
    if code is ExitCode.FAILURE:
        _logger.error("failed", exc_info=error)
    elif error is not None:
        _logger.log(
            logging.INFO if code is ExitCode.STOPPED else logging.ERROR, "%s", _sentence(error)
        )
    progress.update(
        error=_sentence(error) if code not in (ExitCode.DONE, ExitCode.STOPPED) else None,
        exit_code=int(code),
        rendezvous_timed_out=isinstance(error, RendezvousTimeoutError) or None,
    )
    return code


def _train(environment: Environment, options: Options, progress: Progress) -> None:
    placement = environment.placement
    workload = workloads.load(options.workload, options.workload_options)
    directory = (
        CheckpointDirectory(placement.checkpoint_dir, keep=options.keep_checkpoints)
        if placement.checkpoint_dir is not None
        else None
    )
    stop = StopSignal()
    with formed(
        environment,
        rendezvous_timeout_seconds=options.rendezvous_timeout_seconds,
        group_timeout_seconds=options.group_timeout_seconds,
    ) as world:
        stop.listen()
        keeper = Keeper(world, directory)
        train(world, workload, options, keeper=keeper, stop=stop, progress=progress)
        with contextlib.suppress(RuntimeError):
            # Leave together, rank 0 with its store last. Whoever has left already has what it
            # came for: from here on a broken connection is no failure.
            world.barrier()


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
