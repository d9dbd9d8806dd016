"""Arguments of the command. Imports nothing heavy, because `--help` needs this module."""

import argparse
from pathlib import Path

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


def add_progress_argument(parser: argparse.ArgumentParser, *, default_seconds: float) -> None:
    """Add the argument for how often trainers are polled for progress."""
    parser.add_argument(
        "--progress-poll-seconds",
        type=_interval,
        default=default_seconds,
        metavar="S",
        help="poll the trainers of running jobs for progress every S seconds "
        f"(default: {default_seconds:g})",
    )


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text}: use a number of seconds, 0.1 to 3600")
    return seconds


def _kill_request(text: str) -> KillRequest:
    try:
        return KillRequest.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
