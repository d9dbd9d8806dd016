"""Read the content of the pages from the cluster."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from ddp_operator.api.values.text import clean, counted
from ddp_operator.ports import ForbiddenError, Key

from ddp_client import report as reports
from ddp_client.remote.cluster import Cluster
from ddp_client.remote.evidence import gather
from ddp_client.remote.pacing import LIST_SECONDS
from ddp_client.report.page import filling
from ddp_client.ui.cache import Cached
from ddp_client.views import listing
from ddp_client.views.job.snapshot import JobSnapshot

REPORT_SECONDS: Final = 15.0
"""Seconds between two reports of one job; each reads metrics.jsonl through the API server."""
_MAX_JOBS: Final = 1000
"""Most rows of the table; browsers are slow with more."""
_MAX_REPORTS: Final = 32
"""Most reports in the cache, half a megabyte each."""
_GRACE_SECONDS: Final = 60.0
"""A new job may wait this long for an operator."""


@dataclass(frozen=True)
class Jobs:
    """The table, with notes."""

    read_at: datetime
    heading: listing.Row
    rows: tuple[tuple[Key, listing.Row], ...]
    notes: tuple[str, ...]


class Poller:
    """Reads the jobs of one namespace or of all, and the report of each.

    `home`: the namespace to use when the user may not list the jobs of all namespaces.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        home: str,
        everywhere: bool,
        prices: Mapping[str, float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.home = home
        self.everywhere = everywhere
        self.jobs = Cached(self._list, LIST_SECONDS, clock)
        self._cluster = cluster
        self._prices = prices
        self._clock = clock
        self._reports: OrderedDict[Key, Cached[dict[str, Any]]] = OrderedDict()
        self._drawing = asyncio.Lock()

    def report(self, key: Key) -> Cached[dict[str, Any]]:
        """Return the cached report of a job; only the most recently used reports are kept."""
        if key not in self._reports:
            self._reports[key] = Cached(lambda: self._report(key), REPORT_SECONDS, self._clock)
        self._reports.move_to_end(key)
        if len(self._reports) > _MAX_REPORTS:
            self._reports.popitem(last=False)
        return self._reports[key]

    async def _list(self) -> Jobs:
        if not self.everywhere:
            return await self._listed(self.home, ())
        try:
            return await self._listed(None, ())
        except ForbiddenError as error:
            missing = (
                "You may not list the jobs of all namespaces; these are the jobs of "
                f"{self.home} (use --namespace for another one): {clean(error.message)}"
            )
            return await self._listed(self.home, (missing,))

    async def _listed(self, namespace: str | None, notes: tuple[str, ...]) -> Jobs:
        now, rows, more, unobserved = datetime.now(UTC), list[tuple[Key, listing.Row]](), 0, 0
        async for item in self._cluster.jobs(namespace):
            job = JobSnapshot.read(item)
            unobserved += job.unobserved and (now - job.created).total_seconds() > _GRACE_SECONDS
            if len(rows) < _MAX_JOBS:
                row = listing.row(job, now, wide=True, namespaces=self.everywhere)
                rows.append((job.key, row))
            else:
                more += 1
        if more:
            notes += (f"{counted(more, 'more job')}: see `kubectl ddp list`.",)
        if unobserved:
            count = counted(unobserved, "job")
            notes += (f"No operator has handled {count}: run `kubectl ddp doctor`.",)
        heading = listing.heading(wide=True, namespaces=self.everywhere)
        return Jobs(now, heading, tuple(rows), notes)

    async def _report(self, key: Key) -> dict[str, Any]:
        facts = await gather(self._cluster, key)
        async with self._drawing:  # drawing uses a CPU for a second
            return await asyncio.to_thread(
                lambda: filling(reports.build(facts, prices=self._prices))
            )
