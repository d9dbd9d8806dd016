"""The flags of the benchmark. Nothing here imports torch."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.settings.flags import Parser, flag_of

OPERATIONS = ("all_reduce", "all_gather", "broadcast", "reduce_scatter", "send_recv")
"""The operations, in the order of measurement."""

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """The measurements to make, and the least acceptable bandwidth."""

    operations: tuple[str, ...]
    sizes: tuple[int, ...]
    """Bytes of a message, ascending."""
    iterations: int
    warmup: int
    min_busbw: float | None
    """GB/s that every operation must reach with one of the sizes; None: no minimum."""
    ring: bool
    """True: also measure the link from each rank to the next one."""
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
        description="Runs one rank of a network benchmark. Start it as every rank of a job, for "
        "example with python -m ddp_trainer.launch -- python -m ddp_trainer.bench.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    flags.add_argument("--operations", default=",".join(OPERATIONS), help="operations to measure")
    flags.add_argument("--min-bytes", default="1K", help="smallest message; K, M and G are 2^10 …")
    flags.add_argument("--max-bytes", default="64M", help="largest message")
    flags.add_argument("--factor", type=int, default=4, help="factor from one size to the next")
    flags.add_argument("--iterations", type=int, default=20, help="timed iterations per size")
    flags.add_argument("--warmup", type=int, default=5, help="iterations before the timed ones")
    flags.add_argument(
        "--min-busbw",
        type=float,
        metavar="GB/s",
        help="bus bandwidth that every operation must reach with one of the sizes; otherwise the "
        "exit code is 69, and the output names the slowest rank and its node",
    )
    flags.add_argument(
        "--ring",
        action="store_true",
        help="also list the ranks in order, each with its node and the bandwidth and latency to "
        "the next rank, as in a ring of all ranks",
    )
    flags.add_argument("--json", type=Path, metavar="FILE", help="file for the results of rank 0")
    flags.add_argument(
        "--rendezvous-timeout-seconds",
        type=float,
        default=600.0,
        help="how long to wait for the other ranks before exiting with code 75",
    )
    flags.add_argument(
        "--group-timeout-seconds",
        type=float,
        default=120.0,
        help="how long an operation may take before the other ranks count as lost",
    )
    return flags
