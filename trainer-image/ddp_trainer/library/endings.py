"""What the end of a rank means, in an exit code and in a sentence."""

from __future__ import annotations

from ddp_trainer.exit_codes import ConfigurationError, ExitCode, StoppedError
from ddp_trainer.membership.failures import is_lost_peer


def meaning(error: Exception) -> ExitCode:
    """The exit code of a rank that ends with an error."""
    if isinstance(error, StoppedError):
        return ExitCode.STOPPED
    if isinstance(error, ConfigurationError):
        return ExitCode.CONFIGURATION
    return ExitCode.LOST_PEER if is_lost_peer(error) else ExitCode.FAILURE


def sentence(error: Exception | None) -> str:
    """The error in one line: `DiskFull: no space left` rather than a traceback."""
    first_line = next(iter(str(error).splitlines()), "")
    if isinstance(error, ConfigurationError | StoppedError):
        return first_line
    return f"{type(error).__name__}: {first_line}"
