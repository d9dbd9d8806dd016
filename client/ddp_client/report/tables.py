"""The text of a report: the sections that HTML and Markdown share. Pure functions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ddp_operator.api.values.text import counted

from ddp_client.report.curves import MOST_ROWS
from ddp_client.report.model import PARTS, Recovery, Report, SpareEstimate
from ddp_client.text import duration, number

UNKNOWN = "not known"
_ETTR = (
    "the effective training time ratio (training, as a share of the time without suspension and "
    "waiting for nodes or quota)"
)


@dataclass(frozen=True)
class Section:
    """One heading with a table, and a picture if there is one."""

    name: str
    """Name of the picture."""
    title: str
    note: str
    heading: Sequence[str]
    rows: Sequence[Sequence[str]]
    is_detail: bool = False
    """The table is collapsed: the picture shows the same."""


def sections(report: Report) -> list[Section]:
    """Return all sections that have data."""
    return [section for section in _all(report) if section.rows]


def headline(report: Report) -> list[tuple[str, str]]:
    """Return the most important numbers, each with a label."""
    facts: list[tuple[str, str]] = []
    if report.step is not None:
        of = f" of {report.total_steps}" if report.total_steps else ""
        facts.append(("steps", f"{report.step}{of}"))
    if report.loss is not None:
        facts.append(("loss", number(report.loss)))
    if report.accuracy is not None:
        facts.append(("test accuracy", f"{report.accuracy:.1%}"))
    if report.training_ratio is not None:
        facts.append(("goodput", f"{report.training_ratio:.0%}"))
    if report.effective_training_ratio is not None:
        facts.append(("ETTR", f"{report.effective_training_ratio:.2f}"))
    age = ((report.ended or report.made_at) - report.created).total_seconds()
    facts.append(("took" if report.is_over else "age", duration(age)))
    facts.append(("restarts", f"{report.restarts + report.disruptions}"))
    costs = [usage.cost for usage in report.usages if usage.cost is not None]
    if costs:
        facts.append(("cost", f"{sum(costs):,.2f}"))
    return facts


def _all(report: Report) -> Iterator[Section]:
    yield from _learning(report)
    yield from _story(report)
    yield from _progress(report)
    yield from _cost(report)
    yield Section(
        "", "Configuration", f"Reported by ddp-operator {report.version}.",
        ("setting", "value"), report.configuration,
    )  # fmt: skip
    yield Section(
        "", "Events", "The newest ones; the API server deletes Events after an hour.",
        ("time", "reason", "message"),
        [(clock(time), reason, message) for time, reason, message in report.events],
        is_detail=True,
    )  # fmt: skip


def _story(report: Report) -> Iterator[Section]:
    more = f" {report.pods_left_out} older pods are left out." if report.pods_left_out else ""
    yield Section(
        "timeline", "Attempts and pods",
        f"{counted(report.attempts, 'attempt')}, {counted(report.restarts, 'charged restart')}, "
        f"{report.disruptions} not charged.{more}",
        ("pod", "rank", "attempt", "node", "created", "scheduled", "trainer started", "ended",
         "end"),
        [
            (
                pod.name, pod.ranks or UNKNOWN, str(pod.attempt), pod.node or UNKNOWN,
                clock(pod.created), clock(pod.scheduled), clock(pod.started),
                clock(pod.ended, "-" if pod.is_there else UNKNOWN), pod.end,
            )
            for pod in report.pods
        ],
        is_detail=True,
    )  # fmt: skip
    yield Section(
        "recoveries", "Failures and recoveries",
        "Each recorded failure, with the seconds until the new pod was created, had a node and ran "
        "its trainer, the group had formed, and a step was complete. Kubernetes' times have whole "
        "seconds, so the first three are that exact.",
        ("time", "cause", "rank", "node", "action", "parts", "total"),
        [
            (
                clock(r.time), r.cause, UNKNOWN if r.rank is None else str(r.rank),
                r.node or UNKNOWN, f"{r.action}, {'charged' if r.charged else 'not charged'}",
                _parts(r), seconds(r.seconds),
            )
            for r in reversed(report.recoveries)
        ],
    )  # fmt: skip
    yield Section(
        "", "Time between failures",
        "Wall-clock time between the recorded failures that interrupted the training, of one class "
        "or on one node. Parts of an earlier failure do not count.",
        ("of", "name", "failures", "mean time between"),
        [
            (
                each.group, each.name, str(each.count),
                "too few failures" if each.mean_seconds is None else f"{each.mean_seconds:,} s",
            )
            for each in report.failure_intervals
        ],
    )  # fmt: skip
    if report.spare_estimate is not None:
        yield _spares(report.spare_estimate)
    total = sum(spent for _, spent in report.goodput) or 1
    lost = f" {report.steps_lost} steps were repeated." if report.steps_lost else ""
    ratio = report.effective_training_ratio
    ettr = f" ETTR, {_ETTR}, is {ratio:.2f}." if ratio is not None else ""
    yield Section(
        "goodput", "Goodput",
        f"How the job's time was spent.{lost}{ettr}",
        ("kind", "time", "share"),
        [(kind, duration(s), f"{s / total:.1%}") for kind, s in report.goodput if s],
    )  # fmt: skip


def _spares(estimate: SpareEstimate) -> Section:
    left_out = f" (left out: {estimate.unknown}, with unknown waits)"
    waited, rest = estimate.waited_seconds, estimate.with_spare_seconds
    return Section(
        "", "What spares would have saved",
        f"An estimate from {counted(estimate.recoveries, 'recovery', 'recoveries')} with new pods"
        f"{left_out if estimate.unknown else ''}. It assumes that a spare was ready at each "
        "failure. The group still had to form and complete its first step.",
        ("recoveries took", "with a spare", "saved: the wait for new pods"),
        [(
            *((UNKNOWN, UNKNOWN) if rest is None else (f"{waited + rest:,} s", f"{rest:,} s")),
            f"{waited:,} s",
        )],
    )  # fmt: skip


def _learning(report: Report) -> Iterator[Section]:
    every = max(len(report.points) // MOST_ROWS, 1)
    some = report.points[::-1][::every][::-1]
    rows = [(str(p.step), clock(p.time), _value(p.loss)) for p in some]
    without = "A loss that is not a number is a gap." if any(p.loss is None for p in some) else ""
    yield Section("loss", "Loss", without, ("step", "time", "loss"), rows, is_detail=True)
    yield Section(
        "accuracy", "Accuracy on the test set", "The newest evaluations.", ("step", "accuracy"),
        [(str(step), f"{score:.2%}") for step, score in report.scores[-MOST_ROWS:]],
        is_detail=True,
    )  # fmt: skip


def _progress(report: Report) -> Iterator[Section]:
    rates = [p for p in report.points if p.samples_per_second is not None]
    some = rates[::-1][:: max(len(rates) // MOST_ROWS, 1)][::-1]
    yield Section(
        "throughput", "Throughput", "Samples per second of all ranks together.",
        ("step", "time", "samples per second"),
        [(str(p.step), clock(p.time), _value(p.samples_per_second)) for p in some],
        is_detail=True,
    )  # fmt: skip
    times = report.step_times
    if times is not None:
        longest = f", the longest single step {seconds(times.longest)}" if times.longest else ""
        note = f"{times.steps} steps, by the means of the trainer's intervals{longest}."
        rows = [
            ("median", seconds(times.median)),
            ("95 % within", seconds(times.p95)),
            ("99 % within", seconds(times.p99)),
        ]
        yield Section("steps", "Step times", note, ("step time", "seconds"), rows)
    yield Section(
        "", "Slowest ranks",
        "How often a rank was the slowest, without its waits for others. A rank that is slowest "
        "much more often than by chance, or by a large factor, delays the others.",
        ("rank", "slowest", "mean factor", "worst factor", "delayed the others"),
        [
            (
                str(rank.rank), f"{rank.share:.0%}", _factor(rank.mean_ratio),
                _factor(rank.worst_ratio), f"{rank.held_up} of {rank.times} intervals",
            )
            for rank in report.ranks
        ],
    )  # fmt: skip
    whole = sum(spent for _, spent in report.phase_seconds) or 1.0
    yield Section(
        "phases", "Data wait and other time of rank 0",
        "data: waiting for the next batch. communication: includes waiting for other ranks.",
        ("phase", "seconds", "share"),
        [(kind, f"{s:,.1f}", f"{s / whole:.1%}") for kind, s in report.phase_seconds],
    )  # fmt: skip
    yield Section(
        "", "Starts", "Each time a group formed, without starts that a restart went back past.",
        ("first step", "group formed", "first step complete", "seconds between"),
        [
            (str(step), clock(formed), clock(first), seconds(max(first - formed, 0)))
            for step, formed, first in report.starts
        ],
        is_detail=True,
    )  # fmt: skip


def _cost(report: Report) -> Iterator[Section]:
    saves = report.saves
    if saves is not None:
        note = f"{saves.known} written in the known part of the run; "
        note += f"training waited for them {seconds(saves.held_up_seconds)} in total."
        yield Section(
            "checkpoints", "Checkpoints", note, ("step", "complete at", "seconds to write"),
            [
                (str(row.step), clock(row.time), seconds(row.seconds))
                for row in saves.rows[-MOST_ROWS:]
            ]
            or [("none", UNKNOWN, UNKNOWN)],
            is_detail=True,
        )  # fmt: skip
    yield Section(
        "", "GPUs and pods",
        "Their number times the job's time: starting, training and recovering. Pods include "
        "spares. Lost: recovery and repeated steps.",
        ("kind", "number", "hours", "lost hours", "price per hour", "cost", "lost cost"),
        [
            (
                usage.kind, str(usage.count), f"{usage.used_hours:,.2f}",
                f"{usage.lost_hours:,.2f}", *("no price given" if v is None else f"{v:,.2f}" for v
                in (usage.price, usage.cost, usage.lost_cost)),
            )
            for usage in report.usages
        ],
    )  # fmt: skip
    yield Section(
        "", "Nodes to check", "Nodes on which the job's pods failed, or that its next pods avoid.",
        ("node", "failures", "avoided", "why"),
        [
            (
                node.name, str(node.failures), "yes" if node.is_avoided else "no",
                "it reports itself broken" if node.says_so else "its failures",
            )
            for node in report.nodes
        ],
    )  # fmt: skip


def clock(moment: datetime | float | None, otherwise: str = UNKNOWN) -> str:
    """Return a time as text in UTC."""
    if moment is None:
        return otherwise
    time = moment if isinstance(moment, datetime) else datetime.fromtimestamp(moment, UTC)
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def seconds(value: float | None) -> str:
    """Return seconds as text, rounded by size."""
    if value is None:
        return UNKNOWN
    digits = next((digits for least, digits in ((100, 0), (10, 1), (1, 2)) if value >= least), 3)
    return f"{value:,.{digits}f} s"


def _parts(recovery: Recovery) -> str:
    known = zip(PARTS, recovery.parts, strict=True)
    return ", ".join(f"{part} {seconds(s)}" for part, s in known if s is not None) or UNKNOWN


def _value(value: float | None) -> str:
    return UNKNOWN if value is None else number(value)


def _factor(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f} times"
