"""The files of one checkpoint, read and checked against its manifest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddp_trainer.checkpoints.frozen_weights import merge
from ddp_trainer.checkpoints.manifest import DamagedError, Manifest
from ddp_trainer.checkpoints.storage import Content, read_into_memory
from ddp_trainer.system import buffers

STATE = "state.pt"


@dataclass(frozen=True, kw_only=True)
class StoredState:
    """The files of a checkpoint in memory."""

    state: memoryview
    frozen: memoryview | None = None

    def unpack(self) -> Any:
        """Return the state with all weights, on the CPU; raises what torch.load does."""
        state = buffers.load(self.state)
        if self.frozen is not None:
            merge(state, buffers.load(self.frozen))
        return state


def read(path: Path) -> tuple[Manifest, StoredState]:
    """Return manifest and files of the checkpoint at `path`.

    Raises:
        DamagedError: a file is missing, short or has another hash.
        OSError: a file cannot be read for another reason.
    """
    manifest = Manifest.read(path)
    frozen = manifest.frozen
    return manifest, StoredState(
        state=_read_file(path / STATE, manifest.state),
        frozen=_read_file(path.parent / frozen.name, frozen.content) if frozen else None,
    )


def complete(path: Path) -> Manifest | None:
    """Return the manifest if it and all sizes are right; the other files are not read."""
    try:
        manifest = Manifest.read(path)
        sizes = {path / STATE: manifest.state_bytes}
        if manifest.frozen is not None:
            sizes[path.parent / manifest.frozen.name] = manifest.frozen.size_bytes
        return manifest if all(file.stat().st_size == sizes[file] for file in sizes) else None
    except OSError:
        return None


def _read_file(path: Path, expected: Content) -> memoryview:
    try:
        memory, content = read_into_memory(path, size=expected.size)
    except FileNotFoundError:
        raise DamagedError(f"{path.name} is missing") from None
    if content.size != expected.size:
        raise DamagedError(f"{path.name} has {content.size} bytes instead of {expected.size}")
    if content != expected:
        raise DamagedError(f"the checksum of {path.name} does not match")
    return memory
