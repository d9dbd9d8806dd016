"""Words about a slow rank: where it is, what it costs, and why its pod is not replaced."""

from datetime import datetime

from ddp_operator.api.status import SlowRank
from ddp_operator.api.values.text import clean
from ddp_operator.job.status.slow_rank import cost

from ddp_client.text import duration


def lines(slow: SlowRank, now: datetime) -> list[str]:
    """Return the facts about a slow rank, one a line."""
    since = duration((now - slow.since).total_seconds())
    where = f", node {clean(slow.node)}" if slow.node else ""
    facts = [f"rank {slow.rank}, pod {clean(slow.pod)}{where}, for {since}", cost(slow)]
    if slow.not_replaced:
        facts.append(f"not replaced: {clean(slow.not_replaced)}")
    return facts
