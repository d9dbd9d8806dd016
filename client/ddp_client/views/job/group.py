"""The size of an elastic job's group: current, wanted, and upcoming changes."""

from collections.abc import Iterator
from datetime import datetime

from ddp_operator.api.job import DDPJob
from ddp_operator.api.values.text import clean, counted, in_ranges
from ddp_operator.job.membership.world import members
from ddp_operator.job.planning import gap_records
from ddp_operator.job.planning.group import elasticity, spares
from ddp_operator.job.planning.words import some
from ddp_operator.job.pods.observed import Gap, Observed

from ddp_client.text import duration
from ddp_client.views.job.pods import Pods
from ddp_client.views.job.snapshot import JobSnapshot


def size(job: JobSnapshot, now: datetime) -> str:
    """Return how many pods train, and since when; empty for a job that is not elastic."""
    if job.parsed is None or not job.parsed.spec.elastic:
        return ""
    spec = job.parsed.spec
    text = counted(len(job.slots), "pod")
    changed = job.status.world and job.status.world.changed_at
    if changed and not job.status.finished:
        text += f" for {duration((now - changed).total_seconds())}"
    return f"{text}; {spec.max_size} wanted, {spec.min_size} enough"


def changes(job: DDPJob, observed: Observed) -> Iterator[tuple[datetime | None, str]]:
    """Yield when the group's size will change, and how."""
    due, now = elasticity.next_change(job, observed), len(members(job))
    if absent := elasticity.absent_node_ranks(observed):
        fewer = f"training continues with {now - len(absent)} of {counted(now, 'pod')}"
        yield due, f"{fewer}, unless the others are ready (spec.elastic.shrinkAfterSeconds)"
    elif (joining := min(len(spares.ready(job, observed)), job.spec.max_size - now)) > 0:
        who = "one more pod joins" if joining == 1 else f"{joining} more pods join"
        yield due, f"{who} the group (spec.elastic.growAfterSeconds)"


def gaps(job: JobSnapshot, pods: Pods, now: datetime) -> list[str]:
    """Return the node ranks without a training pod, longest first, grouped by reason."""
    by_reason: dict[str, list[Gap]] = {}
    for gap in sorted(gap_records.stored(job.status), key=lambda gap: gap.since):
        by_reason.setdefault(gap.reason, []).append(gap)
    lines = []
    for reason, places in by_reason.items():
        ranks = sorted(gap.node_rank for gap in places)
        there = (pods.current.get(rank) for rank in ranks)
        nodes = sorted({pod.node for pod in there if pod and pod.node})
        where = f" on {some([clean(node) for node in nodes])}" if nodes else ""
        age = duration((now - places[0].since).total_seconds())
        which = "node rank" if len(ranks) == 1 else "node ranks"
        lines.append(f"{which} {in_ranges(ranks)}: {reason} for {age}{where}")
    return lines


def powerless(job: JobSnapshot) -> str:
    """Return why an elastic job's group never changes; empty when it can."""
    if job.parsed is None or not job.parsed.spec.elastic or not job.status.is_true("Running"):
        return ""
    if job.status.bookkeeping.launcher:
        return ""
    return (
        "spec.elastic has no effect: no launcher has answered in the job's pods; set "
        "spec.launcher: inject"
    )
