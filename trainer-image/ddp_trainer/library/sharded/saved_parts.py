"""The volume in memory of this pod, from which a group continues that has lost all its processes.

The launchers copy its files to other pods and keep those that all ranks have. Here ranks save
them, and find those that are in their pod. Which ones they load they agree on in their group.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ddp_trainer.collectives.group import Group
from ddp_trainer.exit_codes import NewProcessError
from ddp_trainer.library.sharded.agreement import Decision, newest_complete
from ddp_trainer.library.sharded.exchange import gathered
from ddp_trainer.memory.loading import NoSnapshotError, read
from ddp_trainer.memory.saving import Saver
from ddp_trainer.memory.volume import Key, snapshots_in

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """The packed snapshots that one rank has loaded."""

    decision: Decision
    """Their step, and who has some for other pods."""
    own: Tensor | None
    """Its own; None: another rank sends it."""
    copies: Mapping[int, Tensor]
    """Those that it sends, by rank."""


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

    def load_newest(self, group: Group, *, lost: bool) -> Loaded | None:
        """Load the newest snapshots that all ranks have saved; None: there are none. A collective.

        `lost`: parts of the model are in no process, but other parts are.

        Raises:
            NewProcessError: parts are lost. Processes with others cannot return that far, so all
                restart.
        """
        files = self._files()
        inventories = gathered(
            group,
            own=[key for rank, key in files if rank == group.rank],
            copies=[(rank, key) for rank, key in files if rank != group.rank],
        )
        decision = newest_complete(inventories)
        if lost:
            outlook = "training starts again"
            if decision is not None:
                outlook = f"all ranks restart from step {decision.key.step} in memory"
            raise NewProcessError(
                "more ranks were lost than join(shard_copies=...) protects from: parts of the "
                f"model are gone, and {outlook}"
            )
        if decision is None:
            return None
        key, senders = decision.key, decision.senders
        if group.rank == 0:
            _logger.info("loading step %d from the memory of the pods", key.step)
        needed = [rank for rank, sender in senders.items() if sender == group.rank]
        return Loaded(
            decision=decision,
            own=None if group.rank in senders else self._load(group.rank, files[group.rank, key]),
            copies={rank: self._load(rank, files[rank, key]) for rank in needed},
        )

    def newest_step(self) -> int:
        """Return the newest step that this rank has saved, or that a file in the volume is of."""
        saved = [key.step for _, key in self._files() if key.generation == self._generation]
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

    def _files(self) -> Mapping[tuple[int, Key], Path]:
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

    def _load(self, rank: int, path: Path) -> Tensor:
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
