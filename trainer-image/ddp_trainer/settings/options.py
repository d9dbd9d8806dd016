"""The trainer's settings; each one is a flag of its command line.

Nothing here imports torch, so a wrong flag is reported at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ddp_trainer import workloads
from ddp_trainer.settings import timeouts
from ddp_trainer.settings.flags import Parser, Settings, Unchosen, add_flags, flag, take
from ddp_trainer.settings.training import (
    DDPOptions,
    HardwareOptions,
    LoadingOptions,
    OptimizationOptions,
)


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """The settings of a training. `join` constructs them for scripts, without a command line.

    Raises:
        ConfigurationError: a value is out of its range or contradicts another.
    """

    workload: str = flag(
        "digits",
        f"what to train: {', '.join(sorted(workloads.NAMES))}, or package.module:factory",
    )
    workload_options: Mapping[str, str] = field(default_factory=dict)
    """Arguments of the workload's factory, as text."""
    epochs: int = flag(12, "passes over the training set", minimum=1)
    max_steps: int = flag(
        0,
        "number of optimizer steps after which training and the learning rate's cosine end, even "
        "within an epoch; 0: train for --epochs",
        minimum=0,
    )
    batch_size: int = flag(32, "samples per rank and batch", minimum=1)
    evaluation_batch_size: int = flag(
        None,
        "samples per rank and batch in evaluation; affects only memory and speed (default: "
        "--batch-size)",
        minimum=1,
    )
    seed: int = flag(0, "seed of weights, sample order and dropout", minimum=0)
    checkpoint_every_steps: int = flag(
        50, "steps between checkpoints; 0: do not save by steps", minimum=0
    )
    checkpoint_every_seconds: float = flag(
        0.0,
        "also save when the last save began this many seconds ago; 0: do not save by time",
        minimum=0,
    )
    checkpoint_sync: bool = flag(
        False, "pause training during each save, which saves the memory for a copy of the state"
    )
    checkpoint_timeout_seconds: float = flag(
        Unchosen(300.0),
        "how long a save may take before training continues without it; at most "
        "--group-timeout-seconds",
        minimum=1,
    )
    keep_checkpoints: int = flag(3, "checkpoints kept; older ones are deleted", minimum=1)
    keep_best: bool = flag(True, "also save and keep the model with the best score on the test set")
    stop_within_seconds: float = flag(
        14.0,
        "how long the last save may take after the signal to stop; less than the pod's grace "
        "period, which is 15 s when a spot node is reclaimed",
        minimum=1,
    )
    log_every_steps: int = flag(
        10,
        "steps between log lines, lines of metrics.jsonl and checks for slow ranks",
        minimum=1,
    )
    tensorboard: bool = flag(
        False,
        "also write the metrics of metrics.jsonl as TensorBoard event files beside the checkpoints",
    )
    rendezvous_timeout_seconds: float = flag(
        600.0,
        "how long to wait for the other ranks before exiting with code 75",
        minimum=1,
    )
    group_timeout_seconds: float = flag(
        Unchosen(600.0),
        "how long a collective may take before the other ranks count as lost",
        minimum=1,
    )
    heartbeat_timeout_seconds: float = flag(
        Unchosen(10.0),
        "how long a rank's process may be frozen before it counts as lost; at most "
        "--group-timeout-seconds; 0: no limit",
        minimum=0,
    )
    max_reforms: int = flag(
        10,
        "how many times in a row a broken group is formed again without completing a step",
        minimum=0,
    )
    verify_replicas: int = flag(
        0,
        "steps between checks that all ranks have the same parameters and optimizer states; if a "
        "bit has flipped, all return to the last checked state in memory; 0: do not check",
        minimum=0,
    )
    verify_gradients: int = flag(
        0,
        "steps between checks that all ranks compute the same gradients of the same batch; if one "
        "does not, all return to the last checked state in memory; 0: do not check",
        minimum=0,
    )
    skip_nonfinite_steps: int = flag(
        0,
        "skip a step if the loss of any rank is NaN or infinite; so many steps in a row can be "
        "skipped before the training fails; 0: do not check",
        minimum=0,
    )
    step_delay_seconds: float = flag(
        0.0,
        "pause after each step, so that a tiny workload lasts long enough to watch or interrupt",
        minimum=0,
    )
    trace_samples: Path | None = flag(
        None,
        "append the time, pod and sample indices of each step to FILE.rank<RANK> as a JSON line",
        metavar="FILE",
    )
    optimization: OptimizationOptions = field(default_factory=OptimizationOptions)
    ddp: DDPOptions = field(default_factory=DDPOptions)
    hardware: HardwareOptions = field(default_factory=HardwareOptions)
    loading: LoadingOptions = field(default_factory=LoadingOptions)

    def __post_init__(self) -> None:
        """Check the values, and set those that depend on others."""
        super().__post_init__()
        workloads.check_name(self.workload)
        size = self.evaluation_batch_size or self.batch_size
        object.__setattr__(self, "evaluation_batch_size", size)
        self._settle_timeouts()

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
        values.workload_options = dict(values.workload_options)
        return take(values, cls)

    def _settle_timeouts(self) -> None:
        """Check the timeouts against each other, and adjust those that the user did not choose."""
        seconds: Mapping[str, float] = {name: getattr(self, name) for name in _TIMEOUTS}
        chosen = {name for name, value in seconds.items() if not isinstance(value, Unchosen)}
        for rule in timeouts.RULES:
            seconds = timeouts.settle(seconds, chosen, rule)
        for name in _TIMEOUTS:
            object.__setattr__(self, name, seconds[name])


_TIMEOUTS = (
    "checkpoint_timeout_seconds",
    "group_timeout_seconds",
    "heartbeat_timeout_seconds",
)


def parser() -> Parser:
    """Return the parser of the trainer's flags."""
    flags = Parser(
        prog="python -m ddp_trainer",
        description="One rank of a DDP training run.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    add_flags(flags, Options)
    flags.add_argument(
        "--workload-option",
        dest="workload_options",
        action="append",
        type=_name_and_value,
        default=[],
        metavar="NAME=VALUE",
        help="argument of the workload's factory, such as layers=4; may be repeated",
    )
    return flags


def _name_and_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value
