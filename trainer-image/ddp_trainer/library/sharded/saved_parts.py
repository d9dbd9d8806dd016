"""The volume in memory of this pod, from which a group continues that has lost all its processes.

The launchers copy its files to other pods and keep those that all ranks have. Here ranks save
them, and find those that are in their pod. Which ones they load they agree on in their group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ddp_trainer.memory.loading import NoSnapshotError, read
from ddp_trainer.memory.saving import Saver
from ddp_trainer.memory.volume import Key, snapshots_in


class SavedParts:
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

    def newest_step(self) -> int:
        """Return the newest step that this rank has saved, or that a file in the volume is of."""
        saved = [key.step for _, key in self.files() if key.generation == self._generation]
        return max([self.newest, *saved])

    def pass_over(self, newest: int, *, loaded: Key | None) -> None:
        """Save only steps above the newest that any rank has saved, and above the one `loaded`.

        If steps are taken again, their results may differ. Snapshots of the same names would mix
        both. A step that this rank has not saved can never be complete. Its launcher is told, so
        that all others release the step: it would take their room for newer ones.
        """
        self.newest = max(self.newest, newest, loaded.step if loaded else 0)
        key = Key(self._generation, newest)
        if self._saver is not None and newest and (loaded is None or key > loaded):
            self._saver.skip(newest)

    @property
    def _generation(self) -> int:
        """Return the generation of the group; 0 without a volume."""
        saver = self._saver
        return saver.assignment.environment.placement.generation if saver is not None else 0

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
