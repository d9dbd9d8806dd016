"""The volume in memory of this pod, from which a group continues that has lost all its processes.

The launchers copy its files to other pods and keep those that all ranks have. Here ranks save
them, and find those that are in their pod. Which ones they load they agree on in their group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ddp_trainer.memory.loading import NoSnapshotError, read
from ddp_trainer.memory.saving import Saver
from ddp_trainer.memory.volume import Key, snapshots_in


class PodMemory:
    """Packed snapshots in the volume; none if the job has no `spec.memoryCheckpoint`."""

    def __init__(self, saver: Saver | None) -> None:
        """`saver`: of this rank; scripts may no longer use it."""
        self._saver = saver
        if saver is not None:
            saver.is_reserved = True
        self.newest = 0
        """The newest step that this process has saved, tried to save or passed over."""

    def wants(self, step: int) -> bool:
        """Return whether a step is new, and can be saved now."""
        return self._saver is not None and step > self.newest and self._saver.has_room()

    def save(self, step: int, snapshot: Tensor) -> None:
        """Save this rank's packed snapshot of a step."""
        assert self._saver is not None, "without a volume, nothing is wanted"
        self.newest = step
        self._saver.save(step, snapshot, replicated=False)

    def pass_over(self, keys: Iterable[Key], *, above: Key | None) -> None:
        """Do not save the steps again, `above` the one to load, that some ranks have saved before.

        Their results may differ this time. Snapshots of the same names would mix both.
        """
        if self._saver is not None:
            generation = self._saver.assignment.environment.placement.generation
            for key in keys:
                if key.generation == generation and (above is None or key > above):
                    self.newest = max(self.newest, key.step)
                    self._saver.skip(key.step)

    def files(self) -> Mapping[tuple[int, Key], Path]:
        """Return the snapshots of this group's ranks that are in the volume, by rank and key."""
        if self._saver is None:
            return {}
        volume = self._saver.volume
        size = self._saver.assignment.environment.placement.world_size
        folders = [volume.received, volume.restored, *(volume.directory / "own").glob("*")]
        return {
            (name.rank, name.key): folder / str(name)
            for folder in folders
            for name in snapshots_in(folder)
            if (name.world_size, name.replicated) == (size, False)
        }

    def load(self, rank: int, path: Path) -> Tensor:
        """Return a rank's packed snapshot.

        Raises:
            NoSnapshotError: the file is damaged, of another kind, or gone.
        """
        assert self._saver is not None, "without a volume, there are no files"
        environment = replace(self._saver.assignment.environment, rank=rank)
        found = read(self._saver.volume, environment, path)
        if not isinstance(found, Tensor) or (found.dtype, found.ndim) != (torch.uint8, 1):
            raise NoSnapshotError(f"{path} is no snapshot of a model that join() trains")
        return found
