"""What to measure: the flags of the benchmark. Nothing here imports torch."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.settings.flags import Parser, flag_of

OPERATIONS = ("all_reduce", "all_gather", "broadcast", "reduce_scatter", "send_recv")
"""In the order in which they are measured."""

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """What to measure and what to expect of it."""

    operations: tuple[str, ...]
    sizes: tuple[int, ...]
    """Bytes of a message, ascending."""
    iterations: int
    warmup: int
    min_busbw: float | None
    """GB/s that every operation has to reach with one of the sizes; None: anything will do."""
    ring: bool
    """Whether to measure the way of each rank to the next one."""
    json_path: Path | None
    rendezvous_timeout_seconds: float
    group_timeout_seconds: float

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> BenchOptions:
        """Read and check the flags.

        Raises:
            ConfigurationError: a flag is unknown or its value is out of range.
        """
        values = _parser().parse_args(arguments)
        for name, minimum in _MINIMA.items():
            if getattr(values, name) < minimum:
                raise ConfigurationError(
                    f"{flag_of(name)} is {getattr(values, name)}: set it to {minimum} or more"
                )
        if values.min_busbw is not None and values.min_busbw <= 0:
            raise ConfigurationError(f"--min-busbw is {values.min_busbw}: set it to more than 0")
        operations = tuple(values.operations.split(","))
        for name in operations:
            if name not in OPERATIONS:
                raise ConfigurationError(
                    f"--operations: {name!r} is unknown, choose from {','.join(OPERATIONS)}"
                )
        return cls(
            operations=operations,
            sizes=_sizes(
                _bytes("--min-bytes", values.min_bytes),
                _bytes("--max-bytes", values.max_bytes),
                factor=values.factor,
            ),
            iterations=values.iterations,
            warmup=values.warmup,
            min_busbw=values.min_busbw,
            ring=values.ring,
            json_path=values.json,
            rendezvous_timeout_seconds=values.rendezvous_timeout_seconds,
            group_timeout_seconds=values.group_timeout_seconds,
        )


_MINIMA = {
    "factor": 2,
    "iterations": 1,
    "warmup": 0,
    "rendezvous_timeout_seconds": 1,
    "group_timeout_seconds": 1,
}


def _sizes(smallest: int, largest: int, *, factor: int) -> tuple[int, ...]:
    if largest < smallest:
        raise ConfigurationError(
            f"--max-bytes {largest} is less than --min-bytes {smallest}: raise it"
        )
    sizes = []
    size = smallest
    while size <= largest:
        sizes.append(size)
        size *= factor
    return tuple(sizes)


def _bytes(flag: str, text: str) -> int:
    match = re.fullmatch(r"(\d+)([KMG]?)", text)
    if match is None or int(match[1]) * _UNITS[match[2]] < 4:
        raise ConfigurationError(
            f"{flag} is {text!r}: set it to 4 or more bytes, such as 64K or 1M"
        )
    return int(match[1]) * _UNITS[match[2]]


def _parser() -> Parser:
    flags = Parser(
        prog="python -m ddp_trainer.bench",
        description="One rank of a benchmark of the network: start it as every rank of a job, "
        "for instance with python -m ddp_trainer.launch -- python -m ddp_trainer.bench.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    flags.add_argument("--operations", default=",".join(OPERATIONS), help="what to measure")
    flags.add_argument("--min-bytes", default="1K", help="smallest message; K, M and G are 2^10 …")
    flags.add_argument("--max-bytes", default="64M", help="largest message")
    flags.add_argument("--factor", type=int, default=4, help="from one size to the next")
    flags.add_argument("--iterations", type=int, default=20, help="timed, of each size")
    flags.add_argument("--warmup", type=int, default=5, help="iterations before the timed ones")
    flags.add_argument(
        "--min-busbw",
        type=float,
        metavar="GB/s",
        help="bus bandwidth that every operation has to reach with one of the sizes; exit code 69 "
        "otherwise, and the slowest rank and its node are named",
    )
    flags.add_argument(
        "--ring",
        action="store_true",
        help="also show the ranks in their order, each with its node and the bandwidth and latency "
        "to the next one, as a ring of all ranks has it",
    )
    flags.add_argument("--json", type=Path, metavar="FILE", help="rank 0 writes the results there")
    flags.add_argument(
        "--rendezvous-timeout-seconds",
        type=float,
        default=600.0,
        help="how long to wait for the other ranks before giving up with exit code 75",
    )
    flags.add_argument(
        "--group-timeout-seconds",
        type=float,
        default=120.0,
        help="how long one operation may take before its peers count as lost",
    )
    return flags
