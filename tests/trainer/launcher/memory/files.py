"""Snapshot files for tests of launchers, which never look into them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from random import Random

from ddp_trainer.launcher.memory.store import Store
from ddp_trainer.memory.volume import PART, SLOTS, Key, SnapshotName, Volume


def volume_at(folder: Path, *, size: int = 1 << 20, copies: int = 1) -> Volume:
    return Volume(directory=folder, size=size, copies=copies)


def snapshot(
    step: int,
    rank: int,
    *,
    generation: int = 1,
    world_size: int = 2,
    replicated: bool = False,
) -> SnapshotName:
    key = Key(generation, step)
    return SnapshotName(key=key, rank=rank, world_size=world_size, replicated=replicated)


def content_of(name: SnapshotName, size: int = 1000) -> bytes:
    """Bytes that differ between any two snapshots."""
    return hashlib.shake_128(str(name).encode()).digest(size)


def save(
    volume: Volume, local_rank: int, name: SnapshotName, *, content: bytes | None = None
) -> bool:
    """Write a snapshot as a rank does; return False if it has no room."""
    folder = volume.own(local_rank)
    folder.mkdir(parents=True, exist_ok=True)
    part, free = folder / PART, folder / "free"
    if free.exists():
        free.rename(part)
    else:
        restored = volume.restored.glob(f"*-{name.rank}-{name.world_size}-sharded.snapshot")
        if len([*folder.glob("*.snapshot"), *restored]) >= SLOTS:
            return False
    with part.open("r+b" if part.exists() else "wb") as file:
        file.truncate(0)
        file.write(content_of(name) if content is None else content)
    part.rename(folder / str(name))
    return True


def flip(path: Path, random: Random) -> None:
    """Change one byte of a file."""
    content = bytearray(path.read_bytes())
    content[random.randrange(len(content))] ^= random.randrange(1, 256)
    path.write_bytes(content)


def names_in(store: Store) -> set[str]:
    return {str(file.name) for file in store.files()}
