"""Runs one rank: `python -m ddp_trainer`. The launcher starts one for each process of the pod."""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence

from ddp_trainer.exit_codes import ConfigurationError, ExitCode
from ddp_trainer.settings.environment import Environment
from ddp_trainer.settings.options import Options
from ddp_trainer.system.logs import end_process, log_to_stdout
from ddp_trainer.telemetry.requests.stacks import dump_on_signal

_logger = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> int:
    """Run this rank to its end and return its exit code."""
    # There is nothing to save yet: a signal may end the process at once.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        options = Options.parse(arguments)
        environment = Environment.from_env(os.environ)
    except ConfigurationError as error:
        log_to_stdout("rank ?")
        _logger.error("%s", error)
        return ExitCode.CONFIGURATION
    log_to_stdout(f"rank {environment.rank}")
    dump_on_signal()
    # Importing torch takes seconds: do it only after the configuration is checked.
    from ddp_trainer.loop.rank import run_rank  # noqa: PLC0415

    return run_rank(environment, options)


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except Exception:
        traceback.print_exc()
        code = ExitCode.FAILURE
    end_process(code)
