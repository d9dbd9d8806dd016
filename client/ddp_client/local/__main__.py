"""The command line: `python -m ddp_client.local FILE`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ddp_operator.api.progress_argument import add_progress_argument

from ddp_client.local.run.kills import KillRequest


def main(arguments: Sequence[str]) -> int:
    """Run a job on this machine and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m ddp_client.local",
        description="Runs one DDPJob on this machine, without a cluster.",
    )
    _add_arguments(parser)
    try:
        parsed = parser.parse_args(arguments)
    except SystemExit as refused:
        return int(refused.code or 0)
    # `--help` should not pay for the planner.
    from ddp_client.local.run import command  # noqa: PLC0415

    return command.run(parsed)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument("file", type=Path, metavar="FILE", help="YAML file with one DDPJob")
    parser.add_argument(
        "--workdir",
        type=Path,
        metavar="DIR",
        help="folder for logs and volumes (checkpoints); a run in the same folder continues from "
        "its checkpoint (default: a new temporary folder)",
    )
    parser.add_argument(
        "--kill-rank",
        action="append",
        type=_kill_request,
        default=[],
        metavar="R@WHEN",
        help="kill rank R's pod on purpose, to see it recover: 1@5s is 5 seconds after the job is "
        "Running, 1@step100 when step 100 is logged; may be repeated",
    )
    add_progress_argument(parser, default_seconds=1.0)
    parser.set_defaults(python=sys.executable, on_cluster="")
    parser.add_argument(
        "--plain", action="store_true", help="print plain lines even on a terminal, no live view"
    )


def _kill_request(text: str) -> KillRequest:
    try:
        return KillRequest.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
