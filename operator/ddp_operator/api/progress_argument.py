"""The argument for how often trainers are polled, of the operator and of local runs."""

import argparse


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
