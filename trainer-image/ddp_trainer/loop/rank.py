"""Runs one rank of the bundled trainer and returns its exit code."""

from __future__ import annotations

import logging

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
    """Train as this rank; return the exit code. The rank's report has the reason in words."""
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
    # First: wrong options are refused without waiting for other ranks.
    learner = Learner.new(environment, options, device=job.device)
    with job.joined(learner.parts()):
        train(job, learner, options)
    job.done()
