"""The volume in memory that holds the snapshots of a pod: its settings and the names of its files.

Ranks write there, and the launcher keeps, copies and removes. Nothing here imports torch, because
both use it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from ddp_trainer.exit_codes import ConfigurationError

DIRECTORY_VARIABLE = "DDP_MEMORY_DIR"
BYTES_VARIABLE = "DDP_MEMORY_BYTES"
COPIES_VARIABLE = "DDP_MEMORY_COPIES"
SUFFIX = ".snapshot"
PART = "part"
"""Name of the file that a rank writes now."""
FREE = "free"
"""Name of a file for the next snapshot; its memory is allocated already."""
SLOTS = 2
"""Snapshots that the volume holds of each rank, and of each rank in other pods that it copies."""
LARGEST_STEP = 2**63 - 1
LARGEST_COPIES = 8

_NAME = re.compile(
    r"(0|[1-9]\d{0,9})-(0|[1-9]\d{0,18})-(0|[1-9]\d{0,6})-([1-9]\d{0,6})-(sharded|replicated)"
    + re.escape(SUFFIX),
    re.ASCII,
)


class Key(NamedTuple):
    """Orders snapshots by age: a restarted group repeats steps, and has a higher generation."""

    generation: int
    """Generation of the group."""
    step: int


@dataclass(frozen=True, kw_only=True)
class SnapshotName:
    """The content of a snapshot file's name."""

    key: Key
    rank: int
    world_size: int
    replicated: bool
    """True: the snapshots of all ranks have the same content, so any one of them suffices."""

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Parse a file name; None: it is not the name of a snapshot."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        generation, step, rank, world_size = map(int, found.groups()[:4])
        if rank >= world_size or step > LARGEST_STEP:
            return None
        return cls(
            key=Key(generation, step),
            rank=rank,
            world_size=world_size,
            replicated=found[5] == "replicated",
        )

    def __str__(self) -> str:
        kind = "replicated" if self.replicated else "sharded"
        generation, step = self.key
        return f"{generation}-{step}-{self.rank}-{self.world_size}-{kind}{SUFFIX}"


def snapshots_in(folder: Path) -> list[SnapshotName]:
    """Return the names of the snapshots in a folder of a volume; none if it does not exist."""
    try:
        return [name for each in os.listdir(folder) if (name := SnapshotName.parse(each))]
    except FileNotFoundError:
        return []


@dataclass(frozen=True, kw_only=True)
class Volume:
    """The volume of this pod."""

    directory: Path
    size: int
    """Its sizeLimit in bytes."""
    copies: int
    """Other pods that hold a copy of each sharded snapshot."""

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Self | None:
        """Read the variables; None: the job keeps no snapshots in memory.

        Raises:
            ConfigurationError: a variable is missing or malformed.
        """
        if not env.get(DIRECTORY_VARIABLE):
            return None
        copies = _number(env, COPIES_VARIABLE)
        if copies > LARGEST_COPIES:
            raise ConfigurationError(f"{COPIES_VARIABLE} is {copies}: the most is {LARGEST_COPIES}")
        return cls(
            directory=Path(env[DIRECTORY_VARIABLE]),
            size=_number(env, BYTES_VARIABLE),
            copies=copies,
        )

    def own(self, local_rank: int) -> Path:
        """Return the folder to which a rank of this pod writes."""
        return self.directory / "own" / str(local_rank)

    @property
    def received(self) -> Path:
        """Return the folder of snapshots that this pod keeps for others."""
        return self.directory / "copies"

    @property
    def restored(self) -> Path:
        """Return the folder of snapshots that were fetched for this pod's own ranks."""
        return self.directory / "restored"

    @property
    def socket(self) -> Path:
        """Return the Unix datagram socket at which the launcher receives reports of ranks."""
        return self.directory / ".launcher.sock"

    def share(self, *, local_world_size: int, replicated: bool) -> int:
        """Return the most bytes of one snapshot file.

        One file of a replicated snapshot serves the whole pod, and no other pod holds a copy of it.
        """
        return self.size // self._files(local_world_size, replicated)

    def needed(self, size: int, *, local_world_size: int, replicated: bool) -> int:
        """Return the smallest sizeLimit, in bytes, for snapshot files of `size` bytes."""
        return size * self._files(local_world_size, replicated)

    def _files(self, local_world_size: int, replicated: bool) -> int:
        return SLOTS if replicated else SLOTS * (1 + self.copies) * local_world_size


def _number(env: Mapping[str, str], name: str) -> int:
    text = env.get(name, "")
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII):
        raise ConfigurationError(f"{name} is {text!r}: set it to a whole number")
    return int(text)
