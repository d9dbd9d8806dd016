"""One rank of the benchmark: `python -m ddp_trainer.launch -- python -m ddp_trainer.bench`."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Mapping, Sequence

from ddp_trainer.bench.options import BenchOptions
from ddp_trainer.exit_codes import ConfigurationError, ExitCode
from ddp_trainer.settings.environment import Environment
from ddp_trainer.system.logs import end_process, log_to_stdout
from ddp_trainer.telemetry.termination import RankReport

_logger = logging.getLogger(__name__)


def main(arguments: Sequence[str], env: Mapping[str, str]) -> int:
    """Run the benchmark on this rank and return its exit code."""
    log_to_stdout(f"rank {env.get('RANK', '?')}")
    error: str | None = None
    try:
        options = BenchOptions.parse(arguments)
        environment = Environment.from_env(env)
        if environment.placement.world_size < 2:
            raise ConfigurationError("WORLD_SIZE is 1: start two or more ranks, to have a network")
        # Importing torch takes seconds: do it only after the configuration is checked.
        from ddp_trainer.bench.run import run  # noqa: PLC0415

        code, error = run(environment, options, env)
    except ConfigurationError as failure:
        code, error = ExitCode.CONFIGURATION, str(failure)
        _logger.error("%s", failure)
    RankReport(env).update(error=error, exit_code=int(code))
    return code


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:], os.environ)
    except Exception:
        traceback.print_exc()
        code = ExitCode.FAILURE
    end_process(code)
