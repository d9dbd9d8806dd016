"""Says in a table, and as data, what was measured."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ddp_operator import __version__

from tests.bench.benchmark import spread
from tests.bench.server.client import IN_FLIGHT
from tests.bench.server.creation import JobsRun, RawRun, Shape
from tests.bench.server.metrics import Requests

AIM_RATIO = 0.5
AIM_WRITES_PER_JOB = 14
"""8 pods, the Service, the Secret with the token, and the status."""
AIM_MEMORY_MB = 120


@dataclass(frozen=True)
class Repetition:
    """One round: the limit, and right after it what the operator made of each shape."""

    raw: RawRun
    jobs: list[JobsRun]


@dataclass(frozen=True)
class Results:
    """All rounds, and what they ran on."""

    kubernetes: str
    repetitions: list[Repetition]

    @property
    def shapes(self) -> list[Shape]:
        """The shapes, in the order of running."""
        return [run.shape for run in self.repetitions[0].jobs]

    def of(self, shape: Shape, value: Callable[[RawRun, JobsRun], float]) -> list[float]:
        """Return one value of each repetition of a shape."""
        return [value(r.raw, j) for r in self.repetitions for j in r.jobs if j.shape == shape]


def table(results: Results) -> str:
    """Return everything for people, in lines of at most 80 characters."""
    raws = [repetition.raw for repetition in results.repetitions]
    lines = [
        f"Kubernetes   {results.kubernetes}: etcd, API server, controllers; no scheduler",
        f"operator     {__version__}, restarted for each run",
        f"raw          a bare client posts the same pods, {raws[0].body_bytes} bytes each",
        f"             ({IN_FLIGHT} requests in flight, as the operator has)",
        f"repetitions  {len(raws)}, interleaved; shown: median (min-max)",
        "",
        _row("", "seconds", "pods/s", "ratio to raw"),
        _row(
            f"raw: {raws[0].pods} pods",
            spread([raw.seconds for raw in raws], 2),
            spread([raw.pods_per_second for raw in raws], 0),
            "1",
        ),
    ]
    lines += [
        _row(
            _title(shape),
            spread(results.of(shape, lambda _, run: run.seconds), 2),
            spread(results.of(shape, lambda _, run: run.pods_per_second), 0),
            spread(results.of(shape, _ratio), 2),
        )
        for shape in results.shapes
    ]
    lines += ["", _row("operator", "peak memory, MB", "CPU, s a job", "CPU, ms a pod")]
    lines += [
        _row(
            _title(shape),
            spread(results.of(shape, lambda _, run: run.peak_memory_mb), 0),
            spread(results.of(shape, lambda _, run: run.cpu_seconds / run.shape.jobs), 3),
            spread(results.of(shape, lambda _, run: 1e3 * run.cpu_seconds / run.shape.pods)),
        )
        for shape in results.shapes
    ]
    lines += ["", *_requests(results)]
    lines += ["", _aims(results)]
    return "\n".join(lines)


def as_data(results: Results) -> dict[str, Any]:
    """Return everything as JSON data."""
    return {
        "kubernetes": results.kubernetes,
        "operator": __version__,
        "repetitions": [
            {
                "raw": {"pods": repetition.raw.pods, "seconds": repetition.raw.seconds},
                "jobs": [_run_as_data(repetition.raw, run) for run in repetition.jobs],
            }
            for repetition in results.repetitions
        ],
    }


def _run_as_data(raw: RawRun, run: JobsRun) -> dict[str, Any]:
    return {
        "jobs": run.shape.jobs,
        "replicas": run.shape.replicas,
        "seconds": run.seconds,
        "podsPerSecond": run.pods_per_second,
        "ratioToRaw": _ratio(raw, run),
        "writesPerJob": _per_job(run, run.requests.writes()),
        "peakMemoryMB": run.peak_memory_mb,
        "cpuSeconds": run.cpu_seconds,
        "requests": {f"{verb} {resource}": n for (verb, resource), n in run.requests.items()},
        "warnings": run.troubles,
    }


def _requests(results: Results) -> list[str]:
    """Requests per job of the first shape, by verb and resource."""
    shape = results.shapes[0]
    runs = [run for r in results.repetitions for run in r.jobs if run.shape == shape]
    lines: list[str] = []
    kinds: Sequence[tuple[str, Callable[[Requests], Requests]]] = (
        ("writes", Requests.writes),
        ("reads", Requests.reads),
    )
    for title, select in kinds:
        totals = [_per_job(run, select(run.requests)) for run in runs]
        total = spread(totals, 2)
        lines.append(f"API {title} per job of {shape.replicas} pods, by anybody".ljust(46) + total)
        keys = {key for run in runs for key in select(run.requests)}
        rows = [(key, [select(run.requests)[key] / shape.jobs for run in runs]) for key in keys]
        rows.sort(key=lambda row: (-median(row[1]), row[0]))
        lines += [f"  {verb:6} {name:37} {spread(values, 2)}" for (verb, name), values in rows]
    return lines


def _aims(results: Results) -> str:
    worst = {
        "ratio": min(median(results.of(shape, _ratio)) for shape in results.shapes),
        "writes": median(
            results.of(results.shapes[0], lambda _, run: _per_job(run, run.requests.writes()))
        ),
        "memory": max(
            max(results.of(shape, lambda _, run: run.peak_memory_mb)) for shape in results.shapes
        ),
    }
    met = {
        f"ratio ≥ {AIM_RATIO}": worst["ratio"] >= AIM_RATIO,
        f"writes per job ≤ {AIM_WRITES_PER_JOB}": worst["writes"] <= AIM_WRITES_PER_JOB,
        f"memory < {AIM_MEMORY_MB} MB": worst["memory"] < AIM_MEMORY_MB,
    }
    return "aims: " + ", ".join(f"{aim} {'met' if yes else 'MISSED'}" for aim, yes in met.items())


def _ratio(raw: RawRun, run: JobsRun) -> float:
    return run.pods_per_second / raw.pods_per_second


def _per_job(run: JobsRun, requests: Requests) -> float:
    return sum(requests.values()) / run.shape.jobs


def _title(shape: Shape) -> str:
    return f"{shape.jobs} {'job' if shape.jobs == 1 else 'jobs'} x {shape.replicas} pods"


def _row(title: str, *cells: str) -> str:
    return (f"{title:20}" + "".join(f"{cell:>20}" for cell in cells)).rstrip()
