"""Arguments of the command. Imports nothing heavy, because `--help` needs this module."""

import argparse
from pathlib import Path

from ddp_operator.api.progress_argument import add_progress_argument

from ddp_client.local.run.kills import KillRequest


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
    parser.add_argument(
        "--plain", action="store_true", help="print plain lines even on a terminal, no live view"
    )


def _kill_request(text: str) -> KillRequest:
    try:
        return KillRequest.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
