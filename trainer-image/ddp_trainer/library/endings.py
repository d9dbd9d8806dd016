"""Turns the end of a rank into an exit code and a sentence."""

from __future__ import annotations

import logging
from typing import NoReturn

from ddp_trainer.exit_codes import (
    ConfigurationError,
    DifferingReplicasError,
    ExitCode,
    FlippedBitsError,
    LeftError,
    NewProcessError,
    NonFiniteLossError,
    StoppedError,
    SupersededError,
)
from ddp_trainer.process_group.failures import is_lost_peer
from ddp_trainer.system.logs import end_process
from ddp_trainer.telemetry.termination import RankReport

_CODES = {
    StoppedError: ExitCode.STOPPED,
    LeftError: ExitCode.DONE,
    ConfigurationError: ExitCode.CONFIGURATION,
    NewProcessError: ExitCode.NEW_PROCESS,
    FlippedBitsError: ExitCode.FLIPPED_BITS,
    DifferingReplicasError: ExitCode.LOST_PEER,
    SupersededError: ExitCode.LOST_PEER,
    NonFiniteLossError: ExitCode.FAILURE,
}
"""Errors with a fixed meaning. Their messages are whole sentences."""

_logger = logging.getLogger(__name__)


def meaning(error: Exception) -> ExitCode:
    """Return the exit code of a rank that ends with this error."""
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return code
    return ExitCode.LOST_PEER if is_lost_peer(error) else ExitCode.FAILURE


def tell(report: RankReport, error: Exception | None) -> ExitCode:
    """Write the end of a rank, with or without an error, to its report; return the exit code."""
    code = meaning(error) if error is not None else ExitCode.DONE
    if code is ExitCode.LOST_PEER and report.known.finished:
        code = ExitCode.DONE  # a finished rank no longer needs the others
    failed = error is not None and code not in (ExitCode.DONE, ExitCode.STOPPED)
    left = True if isinstance(error, LeftError) and not report.known.finished else None
    report.update(error=sentence(error) if failed else None, exit_code=int(code), left=left)
    return code


def sentence(error: Exception | None) -> str:
    """Return the error in one line: `DiskFull: no space left` rather than a traceback."""
    first_line = next(iter(str(error).splitlines()), "")
    if isinstance(error, tuple(_CODES)):
        return first_line
    return f"{type(error).__name__}: {first_line}"


def end_stuck(report: RankReport, what: str) -> NoReturn:
    """End this process from another thread than the one that is stuck."""
    error = f"this process cannot continue: {what}"
    _logger.error("%s", error)
    report.update(error=error, exit_code=int(ExitCode.FAILURE))
    end_process(ExitCode.FAILURE)
