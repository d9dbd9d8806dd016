"""Measures times. All values are those of the slowest rank, since a training waits for it."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch

from ddp_trainer.bench.links import Member, Step, neighbours, partners
from ddp_trainer.bench.operations import DTYPE, OPERATIONS, Operation, exchange, why_unsupported
from ddp_trainer.bench.options import BenchOptions
from ddp_trainer.collectives.group import Group
from ddp_trainer.settings.environment import Placement

_LINK_BYTES = 4 * 2**20
"""Large enough to measure bandwidth and not latency; smaller if all requested sizes are smaller."""
_LINK_ITERATIONS = 10
"""Limit: the goal is to see differences, not exact values."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The measurement of an operation with one message size."""

    operation: str
    size_bytes: int
    """Size of the whole message."""
    count: int
    """Numbers that each rank contributes or keeps."""
    dtype: str
    time_us: float
    """Time of one operation in microseconds: mean over the timed iterations, on the slowest rank.
    """
    algbw: float
    """Algorithm bandwidth, size / time, in GB/s (10^9 bytes)."""
    busbw: float
    """Bus bandwidth in GB/s: comparable between operations and world sizes."""
    wrong: int
    """Count of wrong numbers over all ranks."""


@dataclass(frozen=True, kw_only=True)
class Unsupported:
    """An operation that the backend does not support."""

    operation: str
    reason: str


def measure(group: Group, options: BenchOptions) -> Iterator[Measurement | Unsupported]:
    """Measure all requested operations; yields the same results on all ranks.

    Raises:
        RuntimeError: an operation failed, or another rank is gone.
    """
    for name in options.operations:
        build = OPERATIONS[name]
        reason = why_unsupported(build, group)
        if reason is not None:
            yield Unsupported(operation=name, reason=reason)
            continue
        for size_bytes in options.sizes:
            operation = build(group, size_bytes)
            seconds, wrong = _time_and_check(operation, group, options)
            algbw = operation.size_bytes / seconds / 1e9
            yield Measurement(
                operation=name,
                size_bytes=operation.size_bytes,
                count=operation.count,
                dtype=str(DTYPE).removeprefix("torch."),
                time_us=seconds * 1e6,
                algbw=algbw,
                busbw=algbw * operation.bus_factor,
                wrong=wrong,
            )


def measure_links(
    group: Group, options: BenchOptions, placement: Placement, env: Mapping[str, str]
) -> list[Member]:
    """Measure ranks in pairs; returns the same list of all ranks on each rank."""
    count = min(_LINK_BYTES, options.sizes[-1]) // DTYPE.itemsize
    gbps: dict[int, float] = {}
    for partner in partners(
        group.rank,
        nodes=placement.world_size // placement.local_world_size,
        local_world_size=placement.local_world_size,
    ):
        group.barrier()  # all pairs at the same time, as in a collective
        if partner is not None:
            seconds = _exchange_seconds(group, partner, count, options)
            gbps[partner] = count * DTYPE.itemsize / seconds / 1e9
    host = socket.gethostname()
    member = Member(
        rank=group.rank,
        node=env.get("NODE_NAME") or host,
        host=host,
        partners=tuple(gbps),
        link_gbps=max(gbps.values()),
    )
    return [Member.from_json(part) for part in group.gather(member.to_json())]


def measure_ring(group: Group, options: BenchOptions, placement: Placement) -> list[Step]:
    """Measure each rank with the next one; returns the same ring on each rank."""
    count = min(_LINK_BYTES, options.sizes[-1]) // DTYPE.itemsize
    to = (group.rank + 1) % placement.world_size
    found: dict[int, tuple[float, float]] = {}
    for partner in neighbours(group.rank, placement.world_size):
        group.barrier()
        if partner is not None:
            large, small = (_exchange_seconds(group, partner, size, options) for size in (count, 1))
            found[partner] = count * DTYPE.itemsize / large / 1e9, small * 1e6
    gbps, latency_us = found[to]
    step = Step(
        rank=group.rank,
        node_rank=placement.node_rank,
        to=to,
        gbps=gbps,
        latency_us=latency_us,
    )
    return [Step.from_json(part) for part in group.gather(step.to_json())]


def _exchange_seconds(group: Group, partner: int, count: int, options: BenchOptions) -> float:
    outgoing, incoming = (torch.zeros(count, dtype=DTYPE, device=group.device) for _ in range(2))
    talk = partial(exchange, outgoing, partner, incoming, partner)
    talk()  # opens the connection
    return _seconds(talk, group, iterations=min(options.iterations, _LINK_ITERATIONS))


def _time_and_check(operation: Operation, group: Group, options: BenchOptions) -> tuple[float, int]:
    """Return the seconds on the slowest rank, and the count of wrong numbers on all ranks."""
    operation.fill()
    for _ in range(options.warmup):
        operation.run()
    group.barrier()
    seconds = _seconds(operation.run, group, iterations=options.iterations)
    mine = json.dumps([seconds, operation.wrong()]).encode()
    everyone = [json.loads(part) for part in group.gather(mine)]
    return max(float(time) for time, _ in everyone), sum(int(wrong) for _, wrong in everyone)


def _seconds(run: Callable[[], object], group: Group, *, iterations: int) -> float:
    """Return the mean time of one run in seconds."""
    _wait_for_device(group)
    begin = time.perf_counter()
    for _ in range(iterations):
        run()
    _wait_for_device(group)
    return (time.perf_counter() - begin) / iterations


def _wait_for_device(group: Group) -> None:
    if group.device.type == "cuda":
        torch.cuda.synchronize(group.device)
