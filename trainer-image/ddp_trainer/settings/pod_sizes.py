"""How many ranks each pod of a job has, and which ranks those are."""

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
    """The number of ranks of each pod. Ranks are numbered in the order of the node ranks."""

    sizes: Sequence[int]
    """Ranks of each pod, by node rank."""

    @classmethod
    def parse(cls, text: str) -> PodSizes:
        """Read DDP_POD_SIZES: `4,2x3` is a pod of 4 ranks and three of 2.

        Raises:
            ConfigurationError: the text has another form.
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
        """True if all pods have the same number of ranks."""
        return len(set(self.sizes)) == 1

    def first_rank(self, node_rank: int) -> int:
        """Return the lowest rank of a pod."""
        return self._ends[node_rank] - self.sizes[node_rank]

    def node_rank_of(self, rank: int) -> int:
        """Return the node rank of the pod that holds a rank."""
        return bisect_right(self._ends, rank)

    @cached_property
    def _ends(self) -> Sequence[int]:
        """For each pod, the rank after its last one."""
        return tuple(accumulate(self.sizes))
