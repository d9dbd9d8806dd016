"""How many shards make a step when the number of ranks may change during the training.

A training can keep the number of shards that it began with, for any number of ranks. Its samples,
steps and learning rates then stay the same. Nothing here imports torch, so a wrong variable is
reported at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ddp_trainer.exit_codes import ConfigurationError

_KINDS = ("global", "perRank")


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The batch of a step, as the operator and the training's own flags set it."""

    shards: int = 0
    """Logical shards of a step in a training that begins now; 0: one per rank."""
    exact: bool = False
    """True: the gradients of the shards are summed in a fixed order, for any number of ranks."""
    per_rank: bool = False
    """True: the operator asks for one shard per current rank."""

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Batch:
        """Read DDP_BATCH and DDP_BATCH_RANKS.

        Raises:
            ConfigurationError: one of them is malformed or missing.
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
                "DDP_BATCH is global, but DDP_BATCH_RANKS is not set: set it to the number of "
                "processes that make a step"
            )
        return cls(shards=int(ranks))

    def with_logical_shards(self, count: int) -> Batch:
        """Return the batch with the number of shards from --logical-shards; 0: unchanged.

        Raises:
            ConfigurationError: the job sets elastic.batch: perRank.
        """
        if count == 0:
            return self
        if self.per_rank:
            raise ConfigurationError(
                f"--logical-shards {count} fixes the samples of a step, but elastic.batch perRank "
                "lets them change: set elastic.batch: global, or leave --logical-shards out"
            )
        return replace(self, shards=count, exact=True)

    @property
    def is_fixed(self) -> bool:
        """True if a step has the same samples for any number of ranks."""
        return self.shards > 0

    @property
    def name(self) -> str:
        """The setting that fixed the batch, for messages."""
        return "--logical-shards" if self.exact else "elastic.batch global"

    @property
    def remedy(self) -> str:
        """How to resolve a conflict with another setting, for messages."""
        return "leave --logical-shards out" if self.exact else "set elastic.batch: perRank"

    def shards_of(self, begun_with: int) -> int:
        """Return the shards of a training that began with `begun_with`; 0: one per rank."""
        return (begun_with or self.shards) if self.is_fixed else 0
