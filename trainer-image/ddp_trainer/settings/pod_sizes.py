"""How many ranks each pod of a job has, and so which ranks are whose."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from ddp_trainer.exit_codes import ConfigurationError

_RUN = re.compile(r"(?P<ranks>[1-9][0-9]{0,4})(x(?P<pods>[1-9][0-9]{0,4}))?")


@dataclass(frozen=True)
class PodSizes:
    """Ranks count over the pods in the order of their node ranks."""

    sizes: Sequence[int]
    """Ranks of each pod."""

    @classmethod
    def parse(cls, text: str) -> PodSizes:
        """Read DDP_POD_SIZES: `4,2x3` is a pod of 4 ranks and three of 2.

        Raises:
            ConfigurationError: it is not of that form.
        """
        sizes: list[int] = []
        for part in text.split(","):
            run = _RUN.fullmatch(part)
            if run is None:
                raise ConfigurationError(
                    f"DDP_POD_SIZES is {text[:80]!r}: list the ranks of the pods, such as 4,2x3 "
                    "for a pod of 4 and three of 2"
                )
            sizes += [int(run["ranks"])] * int(run["pods"] or 1)
        return cls(tuple(sizes))

    @property
    def are_equal(self) -> bool:
        """Whether all pods have as many ranks."""
        return len(set(self.sizes)) == 1

    def first_rank(self, node_rank: int) -> int:
        """The lowest rank of a pod."""
        return self._ends[node_rank] - self.sizes[node_rank]

    def node_rank_of(self, rank: int) -> int:
        """The pod that holds a rank."""
        return bisect_right(self._ends, rank)

    @cached_property
    def _ends(self) -> Sequence[int]:
        """The rank after the last one of each pod."""
        return tuple(accumulate(self.sizes))
