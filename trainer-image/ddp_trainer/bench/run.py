"""Runs one rank of the benchmark: forms the group, measures, and prints the report."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from ddp_trainer.bench.measure import (
    Measurement,
    Unsupported,
    measure,
    measure_links,
    measure_ring,
)
from ddp_trainer.bench.options import BenchOptions
from ddp_trainer.bench.report import HEADER, Report, row
from ddp_trainer.exit_codes import ConfigurationError, ExitCode
from ddp_trainer.process_group.failures import is_lost_peer
from ddp_trainer.process_group.world import World
from ddp_trainer.settings.environment import Environment

_HEARTBEAT_TIMEOUT_SECONDS = 10.0
"""As for the trainer: a rank that is frozen for this long ends the benchmark."""

_logger = logging.getLogger(__name__)


def run(
    environment: Environment, options: BenchOptions, env: Mapping[str, str]
) -> tuple[ExitCode, str | None]:
    """Measure on this rank; return the exit code, and the error if there is one.

    Raises:
        ConfigurationError: the pod has too few GPUs, the results cannot be written, or pods have
        different numbers of ranks.
    """
    if not environment.placement.pod_sizes.are_equal:
        raise ConfigurationError(
            "DDP_POD_SIZES: the benchmark needs pods of equal size; set nprocPerNode to the same "
            "number in all pods"
        )
    if environment.rank == 0 and options.json_path is not None:
        _write(options.json_path, "")  # to fail now, and not after minutes of measuring
    try:
        report = _measure(environment, options, env)
    except Exception as error:
        if not is_lost_peer(error):
            raise
        sentence = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        _logger.error("%s", sentence)
        return ExitCode.LOST_PEER, sentence
    return report.exit_code, report.verdict if report.exit_code != ExitCode.DONE else None


def _measure(environment: Environment, options: BenchOptions, env: Mapping[str, str]) -> Report:
    placement = environment.placement
    results: list[Measurement | Unsupported] = []
    world = World(
        environment,
        group_timeout_seconds=options.group_timeout_seconds,
        heartbeat_timeout_seconds=_HEARTBEAT_TIMEOUT_SECONDS,
    )
    with world.formed(timeout_seconds=options.rendezvous_timeout_seconds) as group:
        show = partial(print, flush=True) if group.rank == 0 else _say_nothing
        members = measure_links(group, options, placement, env)
        ring = measure_ring(group, options, placement) if options.ring else []
        show(_preamble(placement.backend, options), HEADER, sep="\n")
        for result in measure(group, options):
            results.append(result)
            show(row(result))
        report = Report(
            backend=placement.backend,
            min_busbw=options.min_busbw,
            members=members,
            ring=ring,
            measurements=[one for one in results if isinstance(one, Measurement)],
            unsupported=[one for one in results if isinstance(one, Unsupported)],
        )
        show(report.closing())
        if group.rank == 0 and options.json_path is not None:
            _write(options.json_path, report.to_json())
        # End together: the first rank that ends with an error ends its whole pod.
        with suppress(RuntimeError):  # a rank that has already left is done
            group.barrier()
    return report


def _say_nothing(*_: object, **__: object) -> None:
    """Print nothing, on ranks other than 0."""


def _preamble(backend: str, options: BenchOptions) -> str:
    return (
        f"# {backend}; mean of {options.iterations} iterations after {options.warmup} warm-up "
        "iterations, on the slowest rank; GB are 10^9 bytes"
    )


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise ConfigurationError(f"--json {path}: {error.strerror}; name another file") from error
