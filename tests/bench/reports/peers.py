"""Says what was measured of the operator and its peers: for a terminal, and for a page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tests.bench.benchmark import spread
from tests.bench.server.creation import RawRun
from tests.bench.server.metrics import Requests

MANY, ONE = "100 jobs of 8 pods", "1 job of 500 pods"
READY, RESTART = "its 500 pods become ready", "one fails, all 500 restart"
PODS = {MANY: 800, ONE: 500, READY: 500, RESTART: 500}
"""By name of each step: how many pods it is about."""
JOBS = {MANY: 100, ONE: 1, READY: 1, RESTART: 1}
_BARE = "bare client"


@dataclass(frozen=True)
class Cost:
    """The cost of one step."""

    seconds: float
    cpu_seconds: float
    """Of the project's own controllers, until nobody wrote anything any more."""
    kube_cpu_seconds: float
    """Of kube-controller-manager, likewise."""
    requests: Requests
    """All that the API server counted meanwhile, by anybody."""

    @property
    def writes(self) -> int:
        """Requests that changed something, without Events and leases."""
        return self.requests.writes().total()


@dataclass(frozen=True)
class Rest:
    """The cost of many running jobs while nothing happens."""

    memory_before_mb: float
    memory_mb: float
    cpu_percent: float
    """Of one core."""
    load: Cost
    """Until they ran."""


@dataclass(frozen=True)
class Round:
    """One repetition: the limit, and what each project took, by its kind and the step."""

    raw: RawRun
    costs: Mapping[str, Mapping[str, Cost]]


@dataclass(frozen=True)
class Results:
    """All that was measured, and on what."""

    kubernetes: str
    versions: Mapping[str, str]
    """By kind of job, in the order of the table's columns."""
    load_average: tuple[float, float, float]
    """Of the machine before it began: 0 where nothing else ran."""
    rounds: Sequence[Round]
    rest: Mapping[str, Rest]

    def of(self, kind: str, step: str) -> list[Cost]:
        """Return what a step of a project took, in each round."""
        return [each.costs[kind][step] for each in self.rounds]


def text(results: Results, settings: Sequence[str]) -> str:
    """Return everything for people: the last table is one for a page, in Markdown."""
    versions = ", ".join(f"{kind} {version}" for kind, version in results.versions.items())
    load = ", ".join(f"{each:.1f}" for each in results.load_average)
    lines = [
        f"Kubernetes   {results.kubernetes}: etcd, API server, controllers; simulated nodes",
        f"projects     {versions}; one runs at a time",
        *(f"{'' if i else 'settings':13}{line}" for i, line in enumerate(settings)),
        f"machine      load average before: {load}",
        f"repetitions  {len(results.rounds)}, in turns; at rest once; shown: median (min-max)",
        "",
        *_writes(results),
        "",
        *_markdown(results),
    ]
    return "\n".join(lines)


def _writes(results: Results) -> list[str]:
    """Return writes by verb and resource: for a job of MANY, and for the restart of ONE."""
    lines = []
    for step, of in ((MANY, f"a job: {MANY}"), (RESTART, f"in all: {RESTART}")):
        costs = {kind: results.of(kind, step) for kind in results.versions}
        keys = {key for each in costs.values() for cost in each for key in cost.requests.writes()}
        rows = {
            key: [
                median(cost.requests[key] / JOBS[step] for cost in each) for each in costs.values()
            ]
            for key in keys
        }
        lines.append(_row(f"API writes {of}", costs))
        lines += [
            _row(f"  {verb:6} {name}", [f"{n:.2f}" for n in rows[verb, name]])
            for verb, name in sorted(rows, key=lambda key: (-max(rows[key]), key))
        ]
    return lines


def _row(title: str, cells: Sequence[str] | Mapping[str, Any]) -> str:
    return f"{title:47}" + "".join(f"{cell:>11}" for cell in cells)


def _markdown(results: Results) -> list[str]:
    """Return the table of a page: a column for each project, and one for the bare client."""
    kinds = list(results.versions)
    heads = [f"{kind} {results.versions[kind]}" for kind in kinds]

    def row(title: str, cells: Sequence[str], bare: str = "-") -> str:
        return f"| {' | '.join([title, *cells, bare])} |"

    def per_pod(step: str) -> list[str]:
        return [
            f"{_milliseconds([c.cpu_seconds for c in results.of(kind, step)], step)} + "
            f"{_milliseconds([c.kube_cpu_seconds for c in results.of(kind, step)], step)}"
            for kind in kinds
        ]

    def rates(step: str) -> list[str]:
        return [
            spread([PODS[step] / c.seconds for c in results.of(kind, step)], 0) for kind in kinds
        ]

    raws = [each.raw for each in results.rounds]
    rest = [results.rest[kind] for kind in kinds]
    writes = [spread([c.writes / JOBS[MANY] for c in results.of(kind, MANY)]) for kind in kinds]
    seconds = [spread([c.seconds for c in results.of(kind, RESTART)]) for kind in kinds]
    restart = [
        spread([c.writes / PODS[RESTART] for c in results.of(kind, RESTART)]) for kind in kinds
    ]
    ratios = [
        spread(
            [
                PODS[MANY] / each.costs[kind][MANY].seconds / each.raw.pods_per_second
                for each in results.rounds
            ],
            2,
        )
        for kind in kinds
    ]
    memory = [f"{each.memory_mb:.0f} ({each.memory_before_mb:.0f} before)" for each in rest]
    return [
        row("", heads, _BARE),
        "|" + "---|" * (len(kinds) + 2),
        row(f"{MANY}: pods a second", rates(MANY), spread([r.pods_per_second for r in raws], 0)),
        row("as a part of the bare client's", ratios, "1"),
        row("API writes a job", writes, "8"),
        row("CPU a pod, ms: own + kube-controller-manager's", per_pod(MANY)),
        row(f"{ONE}: pods a second", rates(ONE)),
        row("CPU a pod, ms", per_pod(ONE)),
        row(f"{READY}: CPU a pod, ms", per_pod(READY)),
        row(f"{RESTART}: seconds to the last new pod", seconds),
        row("API writes a pod", restart),
        row("CPU a pod, ms", per_pod(RESTART)),
        row("1,000 jobs of 2 running pods, at rest: memory, MB", memory),
        row("CPU of one core, %", [f"{each.cpu_percent:.1f}" for each in rest]),
    ]


def _milliseconds(seconds: Sequence[float], step: str) -> str:
    return f"{1e3 * median(seconds) / PODS[step]:.1f}"
