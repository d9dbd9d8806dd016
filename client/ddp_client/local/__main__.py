"""The command line: `python -m ddp_client.local FILE`."""

import argparse
import sys
from collections.abc import Sequence

from ddp_operator.api.constants import EXIT_CONFIGURATION

from ddp_client.local.run.arguments import add_arguments


def main(arguments: Sequence[str]) -> int:
    """Run a job on this machine and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m ddp_client.local",
        description="Runs one DDPJob on this machine, without a cluster.",
    )
    add_arguments(parser)
    try:
        parsed = parser.parse_args(arguments)
    except SystemExit as refused:
        return EXIT_CONFIGURATION if refused.code else 0
    # `--help` should not pay for the planner.
    from ddp_client.local.run import command  # noqa: PLC0415

    return command.run(parsed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
