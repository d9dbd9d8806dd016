"""Formats the status as Prometheus metrics. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import accumulate

from ddp_trainer.telemetry.histogram import BOUNDS
from ddp_trainer.telemetry.status import Measurements, Status

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]{0,62}")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render(status: Status | None, *, rank_restarts: int) -> str:
    """Return all known metrics. `rank_restarts`: ranks that this pod's launcher restarted."""
    lines = _metric(
        "ddp_rank_restarts_total",
        "counter",
        "Ranks that the launcher of this pod restarted.",
        rank_restarts,
    )
    if status is not None:
        lines = [*lines, *_training(status)]
        if status.measurements is not None:
            lines += _measured(status.measurements, slowest_rank=status.slowest_rank)
    return "\n".join(lines) + "\n"


def is_name(text: str) -> bool:
    """Return True if the text is a valid name for a script's own metric."""
    return _NAME.fullmatch(text) is not None


def _training(status: Status) -> Iterator[str]:
    gauges: Iterable[tuple[str, str, float | None]] = [
        ("ddp_step", "Optimizer steps completed since the beginning of training.", status.step),
        ("ddp_total_steps", "Optimizer steps of the whole training.", status.total_steps),
        ("ddp_epoch", "Current epoch, counted from 1.", status.epoch),
        ("ddp_loss", "Mean loss over all ranks at the last logged step.", status.loss),
        ("ddp_samples_per_second", "Samples per second of all ranks.", status.samples_per_second),
        ("ddp_slowest_rank", "The rank that holds the others up.", status.slowest_rank),
    ]
    for name, text, value in gauges:
        yield from _metric(name, "gauge", text, value)
    own = {name: value for name, value in (status.metrics or {}).items() if is_name(name)}
    if own:
        yield from _labelled("ddp_metric", "gauge", "The script's own metrics.", "name", own)
    text = "Time of the last completed step, in Unix time."
    seconds = _unix_time(status.last_step_time)
    yield from _metric("ddp_last_step_timestamp_seconds", "gauge", text, seconds)
    if status.checkpoint is not None:
        text = "Step of the newest complete checkpoint."
        yield from _metric("ddp_checkpoint_step", "gauge", text, status.checkpoint.step)
        text = "Time of the newest complete checkpoint, in Unix time."
        seconds = _unix_time(status.checkpoint.time)
        yield from _metric("ddp_checkpoint_timestamp_seconds", "gauge", text, seconds)


def _measured(measured: Measurements, *, slowest_rank: int | None) -> Iterator[str]:
    if len(measured.step_counts) == len(BOUNDS) + 1:  # another version may have other buckets
        yield from _histogram(measured)
    text = "Time of rank 0 by phase; communication includes waiting for other ranks."
    yield from _labelled(
        "ddp_phase_seconds_total", "counter", text, "phase", measured.phase_seconds
    )
    text = "Number of times that the group of ranks was formed again."
    yield from _metric("ddp_reforms_total", "counter", text, measured.reforms)
    text = "Time without training while the group was formed again."
    yield from _metric("ddp_reform_seconds_total", "counter", text, measured.reform_seconds)
    if slowest_rank is not None and measured.straggler_ratio is not None:
        text = "Own time per step of the slowest rank, divided by the mean of the other ranks."
        ratio = {str(slowest_rank): measured.straggler_ratio}
        yield from _labelled("ddp_straggler_ratio", "gauge", text, "rank", ratio)


def _histogram(measured: Measurements) -> Iterator[str]:
    name = "ddp_step_duration_seconds"
    yield from _head(name, "histogram", "Duration of an optimizer step on rank 0.")
    bounds = [*map(_number, BOUNDS), "+Inf"]
    for bound, count in zip(bounds, accumulate(measured.step_counts), strict=True):
        yield f'{name}_bucket{{le="{bound}"}} {count}'
    yield f"{name}_sum {_number(measured.step_seconds)}"
    yield f"{name}_count {sum(measured.step_counts)}"


def _metric(name: str, kind: str, text: str, value: float | None) -> list[str]:
    return [] if value is None else [*_head(name, kind, text), f"{name} {_number(value)}"]


def _labelled(
    name: str, kind: str, text: str, label: str, values: Mapping[str, float]
) -> list[str]:
    samples = [f'{name}{{{label}="{key}"}} {_number(value)}' for key, value in values.items()]
    return [*_head(name, kind, text), *samples]


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def _number(value: float) -> str:
    return repr(value)


def _unix_time(text: str | None) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except ValueError:
        return None
