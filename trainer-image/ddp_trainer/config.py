"""What a run is told: the environment says where a process stands, the flags say what to train.

Nothing here imports torch, so that a wrong flag or variable is reported at once.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from ddp_trainer import workloads
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.flags import Parser, add_flags, check_range, take
from ddp_trainer.training_options import (
    DDPOptions,
    HardwareOptions,
    OptimizationOptions,
    StagingOptions,
)

Backend = Literal["nccl", "gloo"]

_MASTER_HOST = re.compile(r"(?P<stem>[^.]*-)0(?P<domain>(\..*)?)")
_REMEDY = "the DDPJob operator sets it in its pods; by hand, export it"


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where a pod stands in its job: the part of the environment that all its ranks share."""

    master_addr: str
    master_port: int
    world_size: int
    """Processes in the whole job."""
    node_rank: int
    local_world_size: int
    """Processes in this pod."""
    backend: Backend
    job_name: str
    job_uid: str
    """Unlike that of an earlier job of the same name; empty: not known."""
    attempt: int
    checkpoint_dir: Path | None
    """None: no checkpoints are written or read."""
    status_port: int | None = None
    """Where the launcher serves the pod's status; None: nowhere."""

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Placement:
        """Read and check the variables.

        Raises:
            ConfigurationError: a variable is missing, malformed or contradicts another.
        """
        world_size = _integer(env, "WORLD_SIZE", minimum=1)
        local_world_size = _integer(env, "LOCAL_WORLD_SIZE", minimum=1)
        node_rank = _integer(env, "NODE_RANK", minimum=0)
        if "GROUP_WORLD_SIZE" in env:
            nodes = _integer(env, "GROUP_WORLD_SIZE", minimum=1)
            if nodes * local_world_size != world_size:
                raise ConfigurationError(
                    f"WORLD_SIZE is {world_size}, but GROUP_WORLD_SIZE x LOCAL_WORLD_SIZE is "
                    f"{nodes} x {local_world_size}: set WORLD_SIZE to the number of processes"
                )
        if (node_rank + 1) * local_world_size > world_size:
            raise ConfigurationError(
                f"NODE_RANK {node_rank} with LOCAL_WORLD_SIZE {local_world_size} lies beyond "
                f"WORLD_SIZE {world_size}: node ranks count from 0"
            )
        backend = _text(env, "DDP_BACKEND")
        if backend not in ("nccl", "gloo"):
            raise ConfigurationError(f"DDP_BACKEND is {backend!r}: set it to nccl or gloo")
        checkpoint_dir = env.get("DDP_CHECKPOINT_DIR", "")
        return cls(
            master_addr=_text(env, "MASTER_ADDR"),
            master_port=_integer(env, "MASTER_PORT", minimum=1, maximum=65535),
            world_size=world_size,
            node_rank=node_rank,
            local_world_size=local_world_size,
            backend=cast(Backend, backend),
            job_name=env.get("DDP_JOB_NAME", "ddp"),
            job_uid=env.get("DDP_JOB_UID", ""),
            attempt=_integer(env, "DDP_ATTEMPT", minimum=0) if "DDP_ATTEMPT" in env else 0,
            checkpoint_dir=Path(checkpoint_dir) if checkpoint_dir else None,
            status_port=_integer(env, "DDP_STATUS_PORT", minimum=1, maximum=65535)
            if env.get("DDP_STATUS_PORT")
            else None,
        )

    def rank_of(self, local_rank: int) -> int:
        """The rank in the whole job of this pod's process `local_rank`."""
        return self.node_rank * self.local_world_size + local_rank

    def node_rank_of(self, rank: int) -> int:
        """The pod that holds a rank of the job."""
        return rank // self.local_world_size

    def host_of(self, node_rank: int) -> str | None:
        """The name of a pod of the job; None where MASTER_ADDR is not of the operator's form.

        There the pods' hostnames end in their node rank.
        """
        master = _MASTER_HOST.fullmatch(self.master_addr)
        return f"{master['stem']}{node_rank}{master['domain']}" if master else None


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Where one process stands in its job."""

    placement: Placement
    rank: int
    local_rank: int

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Environment:
        """Read and check the variables.

        Raises:
            ConfigurationError: a variable is missing, malformed or contradicts another.
        """
        placement = Placement.from_env(env)
        rank = _integer(env, "RANK", minimum=0)
        local_rank = _integer(env, "LOCAL_RANK", minimum=0)
        if local_rank >= placement.local_world_size or rank != placement.rank_of(local_rank):
            raise ConfigurationError(
                f"RANK {rank} and LOCAL_RANK {local_rank} do not fit NODE_RANK "
                f"{placement.node_rank} and LOCAL_WORLD_SIZE {placement.local_world_size}: "
                "RANK must be NODE_RANK x LOCAL_WORLD_SIZE + LOCAL_RANK (start the trainer with "
                "python -m ddp_trainer.launch, which sets them)"
            )
        return cls(placement=placement, rank=rank, local_rank=local_rank)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to train, and how: the trainer's flags."""

    workload: str
    workload_options: Mapping[str, str]
    """Arguments of the workload's factory, as text."""
    epochs: int
    batch_size: int
    """Samples that a rank computes on at a time."""
    seed: int
    optimization: OptimizationOptions
    ddp: DDPOptions
    hardware: HardwareOptions
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
        for name, minimum in _MINIMA.items():
            check_range(name, getattr(values, name), minimum=minimum)
        if values.data is not None and "data" in values.workload_options:
            raise ConfigurationError("--data and --workload-option data say the same: give one")
        kinds = {name: take(values, kind) for name, kind in _KINDS.items()}
        return cls(**vars(values), **kinds)


_KINDS: Mapping[str, type[Any]] = {
    "optimization": OptimizationOptions,
    "ddp": DDPOptions,
    "hardware": HardwareOptions,
    "staging": StagingOptions,
}
"""Fields of Options whose own fields are flags."""


_MINIMA: Mapping[str, float] = {
    "epochs": 1,
    "batch_size": 1,
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
        "--batch-size", type=int, default=32, help="samples that a rank computes on at a time"
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
        "--rendezvous-timeout-seconds",
        type=float,
        default=600.0,
        help="how long to wait for the other ranks before giving up with exit code 75",
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
        help="how long a rank's process may stand still before it counts as lost; 0: for ever",
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
        help="append each step's sample indices to FILE.rank<RANK>, one JSON line a step",
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
        help="how long a save may take before training goes on without it",
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


def _text(env: Mapping[str, str], name: str) -> str:
    value = env.get(name, "")
    if not value:
        raise ConfigurationError(f"{name} is not set: {_REMEDY}")
    return value


def _integer(env: Mapping[str, str], name: str, *, minimum: int, maximum: int | None = None) -> int:
    text = _text(env, name)
    try:
        value = int(text)
    except ValueError:
        raise ConfigurationError(f"{name} is {text!r}: set it to a whole number") from None
    if value < minimum or (maximum is not None and value > maximum):
        limits = f"at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
        raise ConfigurationError(f"{name} is {value}: set it to a number {limits}")
    return value
