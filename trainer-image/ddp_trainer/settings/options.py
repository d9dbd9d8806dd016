"""What to train, and how: what the flags say.

Nothing here imports torch, so that a wrong flag is reported at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddp_trainer import workloads
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.settings import timeouts
from ddp_trainer.settings.flags import Parser, add_flags, check_range, chosen, take
from ddp_trainer.settings.training import (
    DDPOptions,
    HardwareOptions,
    LoadingOptions,
    OptimizationOptions,
    StagingOptions,
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to train, and how: the trainer's flags."""

    workload: str
    workload_options: Mapping[str, str]
    """Arguments of the workload's factory, as text."""
    epochs: int
    max_steps: int
    """0: as many as the epochs have."""
    batch_size: int
    """Samples that a rank computes on at a time."""
    evaluation_batch_size: int
    """Samples that a rank evaluates at a time; nothing but memory and speed depends on it."""
    seed: int
    optimization: OptimizationOptions
    ddp: DDPOptions
    hardware: HardwareOptions
    loading: LoadingOptions
    staging: StagingOptions
    checkpoint_every_steps: int
    """0: however many steps it has been."""
    checkpoint_every_seconds: float
    """0: however long it has been."""
    checkpoint_sync: bool
    checkpoint_timeout_seconds: float
    keep_checkpoints: int
    keep_best: bool
    stop_within_seconds: float
    log_every_steps: int
    tensorboard: bool
    """Whether rank 0 writes event files, too."""
    rendezvous_timeout_seconds: float
    group_timeout_seconds: float
    heartbeat_timeout_seconds: float
    max_reforms: int
    step_delay_seconds: float
    trace_samples: Path | None

    @property
    def step_size(self) -> int:
        """Samples per rank and optimizer step."""
        return self.batch_size * self.optimization.accumulate_steps

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> Options:
        """Read and check the flags.

        Raises:
            ConfigurationError: a flag is unknown or its value is out of range.
        """
        values = parser().parse_args(arguments)
        workloads.check_name(values.workload)
        values.workload_options = dict(values.workload_options)
        if "evaluation_batch_size" not in values:
            values.evaluation_batch_size = values.batch_size
        for name, minimum in _MINIMA.items():
            check_range(name, getattr(values, name), minimum=minimum)
        _settle_timeouts(values, arguments)
        if values.data is not None and "data" in values.workload_options:
            raise ConfigurationError("--data and --workload-option data say the same: give one")
        kinds = {name: take(values, kind) for name, kind in _KINDS.items()}
        return cls(**vars(values), **kinds)


_KINDS: Mapping[str, type[Any]] = {
    "optimization": OptimizationOptions,
    "ddp": DDPOptions,
    "hardware": HardwareOptions,
    "loading": LoadingOptions,
    "staging": StagingOptions,
}
"""Fields of Options whose own fields are flags."""


_TIMEOUTS = (
    "checkpoint_timeout_seconds",
    "group_timeout_seconds",
    "heartbeat_timeout_seconds",
    "rendezvous_timeout_seconds",
    "stage_timeout_seconds",
)


def _settle_timeouts(values: argparse.Namespace, arguments: Sequence[str]) -> None:
    """Refuse time-outs that contradict each other; let those that nobody chose give way."""
    seconds: Mapping[str, float] = {name: getattr(values, name) for name in _TIMEOUTS}
    given = chosen(parser(), arguments, _TIMEOUTS)
    for rule in timeouts.rules(values.stage):
        seconds = timeouts.settle(seconds, given, rule)
    for name, value in seconds.items():
        setattr(values, name, value)


_MINIMA: Mapping[str, float] = {
    "epochs": 1,
    "max_steps": 0,
    "batch_size": 1,
    "evaluation_batch_size": 1,
    "seed": 0,
    "checkpoint_every_steps": 0,
    "checkpoint_every_seconds": 0,
    "checkpoint_timeout_seconds": 1,
    "keep_checkpoints": 1,
    "stop_within_seconds": 1,
    "log_every_steps": 1,
    "rendezvous_timeout_seconds": 1,
    "group_timeout_seconds": 1,
    "heartbeat_timeout_seconds": 0,
    "max_reforms": 0,
    "step_delay_seconds": 0,
}


def parser() -> Parser:
    """The trainer's flags."""
    flags = Parser(
        prog="python -m ddp_trainer",
        description="One rank of a DDP training run.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    flags.add_argument(
        "--workload",
        default="digits",
        help=f"what to train: {', '.join(sorted(workloads.NAMES))}, or package.module:factory",
    )
    flags.add_argument(
        "--workload-option",
        dest="workload_options",
        action="append",
        type=_name_and_value,
        default=[],
        metavar="NAME=VALUE",
        help="an argument of the workload's factory, such as layers=4; may be given several times",
    )
    flags.add_argument("--epochs", type=int, default=12, help="passes over the training set")
    flags.add_argument(
        "--max-steps",
        type=int,
        default=0,
        help="end after so many optimizer steps, and the learning rate's cosine with them, even "
        "within an epoch; 0: after --epochs",
    )
    flags.add_argument(
        "--batch-size", type=int, default=32, help="samples that a rank computes on at a time"
    )
    flags.add_argument(
        "--evaluation-batch-size",
        type=int,
        default=argparse.SUPPRESS,
        help="samples that a rank evaluates at a time (default: --batch-size)",
    )
    flags.add_argument("--seed", type=int, default=0, help="seeds weights, order and dropout")
    _add_checkpoint_flags(flags)
    flags.add_argument(
        "--log-every-steps",
        type=int,
        default=10,
        help="steps between log lines, lines of metrics.jsonl and comparisons of ranks",
    )
    flags.add_argument(
        "--tensorboard",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="write what metrics.jsonl has as event files for TensorBoard, too, beside the "
        "checkpoints",
    )
    flags.add_argument(
        "--rendezvous-timeout-seconds",
        type=float,
        default=600.0,
        help="how long to wait for the other ranks before giving up with exit code 75; as long as "
        "--stage copy may take, where that is longer and nothing was chosen",
    )
    flags.add_argument(
        "--group-timeout-seconds",
        type=float,
        default=600.0,
        help="how long one collective may take before its peers count as lost",
    )
    flags.add_argument(
        "--heartbeat-timeout-seconds",
        type=float,
        default=10.0,
        help="how long a rank's process may stand still before it counts as lost; at most "
        "--group-timeout-seconds; 0: for ever",
    )
    flags.add_argument(
        "--max-reforms",
        type=int,
        default=10,
        help="how many times in a row, without a step in between, a broken group is formed anew",
    )
    flags.add_argument(
        "--step-delay-seconds",
        type=float,
        default=0.0,
        help="sleep after each step: makes a tiny workload last long enough to watch or interrupt",
    )
    flags.add_argument(
        "--trace-samples",
        type=Path,
        metavar="FILE",
        help="append each step's time, pod and sample indices to FILE.rank<RANK>, a JSON line each",
    )
    for kind in _KINDS.values():
        add_flags(flags, kind)
    return flags


def _name_and_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def _add_checkpoint_flags(flags: Parser) -> None:
    flags.add_argument(
        "--checkpoint-every-steps",
        type=int,
        default=50,
        help="steps between checkpoints; 0: do not count steps",
    )
    flags.add_argument(
        "--checkpoint-every-seconds",
        type=float,
        default=0.0,
        help="save, too, when the last save began so long ago; 0: do not look at the clock",
    )
    flags.add_argument(
        "--checkpoint-sync",
        action="store_true",
        help="let training wait for each save, which takes no memory for a copy of the state",
    )
    flags.add_argument(
        "--checkpoint-timeout-seconds",
        type=float,
        default=300.0,
        help="how long a save may take before training goes on without it; at most "
        "--group-timeout-seconds",
    )
    flags.add_argument(
        "--keep-checkpoints", type=int, default=3, help="checkpoints kept; older ones are deleted"
    )
    flags.add_argument(
        "--keep-best",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also save and keep the model with the best score on the test set",
    )
    flags.add_argument(
        "--stop-within-seconds",
        type=float,
        default=14.0,
        help="how long saving may take once told to stop; less than the pod's grace period, "
        "which is 15 s where a spot node is reclaimed",
    )
