"""The life of one rank of the bundled trainer, and how it ended, in one exit code."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddp_trainer import workloads
from ddp_trainer.collectives.group import Group
from ddp_trainer.data.staging import Stage, copy
from ddp_trainer.exit_codes import ExitCode, LeftError
from ddp_trainer.library.endings import sentence, tell
from ddp_trainer.library.job import Job
from ddp_trainer.library.join import report_of
from ddp_trainer.loop.learner import Learner
from ddp_trainer.loop.train import train
from ddp_trainer.settings.environment import Environment
from ddp_trainer.settings.options import Options
from ddp_trainer.telemetry.termination import RankReport

_logger = logging.getLogger(__name__)


def run_rank(environment: Environment, options: Options) -> ExitCode:
    """Train as this rank; returns how it ended, which the rank's report tells in words."""
    report = report_of(environment, options)
    error: Exception | None = None
    try:
        _train(environment, options, report)
    except Exception as failure:
        error = failure
    code = tell(report, error)
    if code is ExitCode.FAILURE:
        _logger.error("failed", exc_info=error)
    elif code is not ExitCode.DONE or isinstance(error, LeftError):
        expected = code in (ExitCode.DONE, ExitCode.STOPPED)
        _logger.log(logging.INFO if expected else logging.ERROR, "%s", sentence(error))
    return code


def _train(environment: Environment, options: Options, report: RankReport) -> None:
    job = Job(environment, options, report)
    learners: list[Learner] = []

    def learner(data: Path | None) -> Learner:
        if not learners:
            learners.append(Learner.new(environment, options, data, device=job.device))
        return learners[0]

    def parts_in(group: Group) -> dict[str, Any]:
        # Each time: one of the ranks may be new, and without data.
        return learner(_staged(environment, options, group)).parts()

    parts: dict[str, Any] | Callable[[Group], dict[str, Any]] = parts_in
    if options.staging.stage != "broadcast":
        # Before meeting anybody: wrong options need not wait for other ranks.
        parts = learner(_staged(environment, options)).parts()
    with job.joined(parts):
        train(job, learners[0], options)


def _staged(environment: Environment, options: Options, group: Group | None = None) -> Path | None:
    """Where the workload's data lies, brought there first if that is asked for.

    With a `group` it is rank 0 that reads it; a collective.
    """
    staging = options.staging
    if staging.stage_dir is None or staging.data is None:
        return staging.data
    stage = Stage(
        staging.stage_dir,
        local_rank=environment.local_rank,
        timeout_seconds=staging.stage_timeout_seconds,
    )
    build = workloads.builder(options.workload) or copy
    if group is None:
        return stage.bring(staging.data, build=build)
    return stage.receive(group, staging.data, build=build)
