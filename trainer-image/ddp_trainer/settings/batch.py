"""Whose batches make a step, where the number of ranks may change while they train.

As many shards as ranks that a training began with make each step, whoever is there to compute them:
so its samples, steps and learning rates stay what they are. Nothing here imports torch, so that a
wrong variable is reported at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ddp_trainer.exit_codes import ConfigurationError

_KINDS = ("global", "perRank")


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What the operator and the training's own flags say of it."""

    shards: int = 0
    """Logical shards of a step, in a training that begins now; 0: as many as there are ranks."""
    exact: bool = False
    """Whether their gradients are summed in one order, whoever has computed them."""
    per_rank: bool = False
    """Whether the operator wants a step to have as many as there are ranks at any time."""

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Batch:
        """Read DDP_BATCH and DDP_BATCH_RANKS.

        Raises:
            ConfigurationError: one of them is malformed, or missing.
        """
        kind, ranks = env.get("DDP_BATCH", ""), env.get("DDP_BATCH_RANKS", "")
        if kind and kind not in _KINDS:
            raise ConfigurationError(f"DDP_BATCH is {kind!r}: set it to global or perRank")
        if ranks and not (ranks.isascii() and ranks.isdecimal() and int(ranks) > 0):
            raise ConfigurationError(
                f"DDP_BATCH_RANKS is {ranks!r}: set it to the number of processes, 1 or more"
            )
        if kind != "global":
            return cls(per_rank=kind == "perRank")
        if not ranks:
            raise ConfigurationError(
                "DDP_BATCH is global, and DDP_BATCH_RANKS is not set: set it to the number of "
                "processes whose batches make a step"
            )
        return cls(shards=int(ranks))

    def with_logical_shards(self, count: int) -> Batch:
        """What a training's own flags make of it, where they ask for so many; 0: for none.

        Raises:
            ConfigurationError: the operator was told otherwise.
        """
        if count == 0:
            return self
        if self.per_rank:
            raise ConfigurationError(
                f"--logical-shards {count} fixes the samples of a step, and elastic.batch perRank "
                "lets them change: set elastic.batch: global, or leave --logical-shards out"
            )
        return replace(self, shards=count, exact=True)

    @property
    def is_fixed(self) -> bool:
        """Whether a step has the same samples whatever the number of ranks."""
        return self.shards > 0

    @property
    def name(self) -> str:
        """What has fixed it, for people."""
        return "--logical-shards" if self.exact else "elastic.batch global"

    @property
    def remedy(self) -> str:
        """What to do where something does not go with it."""
        return "leave --logical-shards out" if self.exact else "set elastic.batch: perRank"

    def shards_of(self, begun_with: int) -> int:
        """Of a training that began with so many: those stay its own. 0: as many as ranks."""
        return (begun_with or self.shards) if self.is_fixed else 0
