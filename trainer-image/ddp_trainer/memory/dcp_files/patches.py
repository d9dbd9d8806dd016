"""Lets DCP's storage in files save to memory, too, and load from there after a restart.

Each rank saves what DCP lists for it before it leaves out what other ranks write. So a snapshot
needs no file of another pod. The coordinator saves its own only once `.metadata` is written:
without it the step is not complete, so no torn save is ever resumed from.
"""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.memory.dcp import Reader, Writer
from ddp_trainer.memory.dcp_files.folders import SavedFolders, is_below, lock, root_of
from ddp_trainer.memory.volume import Volume
from ddp_trainer.settings.environment import Environment

_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
_LOADS = ("set_up_storage_reader", "prepare_local_plan", "prepare_global_plan", "read_data")

_logger = logging.getLogger(__name__)


def patch(module: ModuleType, env: Mapping[str, str]) -> None:
    """Change the classes of `torch.distributed.checkpoint.filesystem`."""
    volume, folders, root = Volume.from_env(env), SavedFolders.from_env(env), root_of(env)
    if volume is None or folders is None or root is None:
        return
    kept = KeptCheckpoints(volume, folders, root, Environment.from_env(env))
    _patch_writer(module.FileSystemWriter, kept)
    _patch_reader(module.FileSystemReader, kept)


class KeptCheckpoints:
    """The checkpoints below one folder, as one rank saves and loads them."""

    def __init__(
        self, volume: Volume, folders: SavedFolders, root: str, environment: Environment
    ) -> None:
        """`root`: the real path of the folder."""
        self._volume = volume
        self._folders = folders
        self._root = root
        self._environment = environment
        self._generation = environment.placement.generation
        restored = folders.read().restored
        self._kind = _kind(self._below(restored)) if restored else ""
        """The form of the folders' names; empty: none was saved yet."""
        self._warned: set[str] = set()

    def _below(self, path: str) -> str:
        return os.path.relpath(path, self._root)

    def begin(self, path: object, plan: SavePlan) -> Save | None:
        """Begin to keep a checkpoint, before DCP writes it; None: it is not kept."""
        folder = os.path.realpath(str(path))
        if not is_below(folder, self._root):
            return None
        if not getattr(plan, "usable", True):  # torch 2.7 has no such plans
            self.warn("the planner has enable_plan_caching=True: set it to False")
            return None
        below = self._below(folder)
        kind = _kind(below)
        self._kind = self._kind or kind
        if kind != self._kind:
            self.warn(f"{below} is not kept: only one kind of checkpoint can be, {self._kind} here")
            return None
        try:
            self._folders.note(folder, self._generation)
        except OSError as error:
            self.warn(str(error))
            return None
        return Save(self, below, plan.items)

    def save(self, below: str, items: Sequence[WriteItem], planner: SavePlanner) -> None:
        """Save the snapshot of a checkpoint; its step is the last number in the folder's path."""
        numbers = _NUMBER.findall(below)
        try:
            with self._next_step(int(numbers[-1]) if numbers else 0) as step:
                Writer(step).save(items, planner, folder=below)
        except (OSError, TypeError, ValueError, RuntimeError, ConfigurationError) as error:
            self.warn(f"{below} is not kept: {error}")

    @contextmanager
    def _next_step(self, named: int) -> Iterator[int]:
        """Return the step of a save, which increases, and keep other saves of this rank waiting.

        With `async_save`, a thread or another process may save.
        """
        own, generation = self._volume.own(self._environment.local_rank), self._generation
        own.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(own / "step", flags, 0o600), "r+") as file:
            lock(file.fileno())
            by, last = map(int, (file.read() or "-1 -1").split())
            if by != generation:
                saved = self._folders.read()
                last = saved.step if saved.restored else -1
            step = max(named, last + 1)
            file.seek(0)
            file.truncate()
            file.write(f"{generation} {step}")
            file.flush()
            yield step

    def reader(self, path: object) -> Reader | None:
        """Return what reads a checkpoint from memory; None: it is on disk."""
        saved = self._folders.read()
        if not saved.is_in_memory or os.path.realpath(str(path)) != saved.restored:
            return None
        reader = Reader()
        return reader if reader.step is not None else None

    def warn(self, sentence: str) -> None:
        """Log a sentence once."""
        if sentence not in self._warned:
            self._warned.add(sentence)
            _logger.warning("checkpoints in memory: %s", sentence)


class Save:
    """One checkpoint that this rank saves."""

    def __init__(self, kept: KeptCheckpoints, below: str, items: Sequence[WriteItem]) -> None:
        """`below`: the path below the folder that is kept. `items`: all of this rank."""
        self._kept = kept
        self._below = below
        self._items = items
        self.planner: SavePlanner | None = None
        """Has the values; None: nothing was written yet, or the snapshot is saved."""

    def save(self) -> None:
        """Save the snapshot, once."""
        planner, self.planner = self.planner, None
        if planner is not None:
            self._kept.save(self._below, self._items, planner)


def _patch_writer(writer: Any, kept: KeptCheckpoints) -> None:
    set_up, prepare = writer.set_up_storage_writer, writer.prepare_local_plan
    write_data, finish = writer.write_data, writer.finish

    @functools.wraps(set_up)
    def note_coordinator(self: Any, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._ddp_is_coordinator, self._ddp_save = is_coordinator, None
        set_up(self, is_coordinator, *args, **kwargs)

    @functools.wraps(prepare)
    def begin(self: Any, plan: SavePlan) -> Any:
        self._ddp_save = kept.begin(self.path, plan)
        return prepare(self, plan)

    @functools.wraps(write_data)
    def write_and_save(self: Any, plan: SavePlan, planner: SavePlanner) -> Any:
        written = write_data(self, plan, planner)
        if save := self._ddp_save:
            save.planner = planner
            if not self._ddp_is_coordinator:
                save.save()
        return written

    @functools.wraps(finish)
    def finish_and_save(self: Any, *args: Any, **kwargs: Any) -> None:
        finish(self, *args, **kwargs)
        if save := self._ddp_save:
            save.save()

    writer.set_up_storage_writer, writer.prepare_local_plan = note_coordinator, begin
    writer.write_data, writer.finish = write_and_save, finish_and_save


def _patch_reader(reader: Any, kept: KeptCheckpoints) -> None:
    read_metadata = reader.read_metadata

    @functools.wraps(read_metadata)
    def choose(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._ddp_memory = kept.reader(self.path)
        if self._ddp_memory is None:
            return read_metadata(self, *args, **kwargs)
        return self._ddp_memory.read_metadata()

    def passed_on(name: str) -> Any:
        on_disk = getattr(reader, name)

        @functools.wraps(on_disk)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            if memory := getattr(self, "_ddp_memory", None):
                return getattr(memory, name)(*args, **kwargs)
            return on_disk(self, *args, **kwargs)

        return method

    reader.read_metadata = choose
    for name in _LOADS:
        setattr(reader, name, passed_on(name))


def _kind(below: str) -> str:
    """Return the form of a folder's name, without its numbers."""
    return re.sub(r"\d+", "#", below)
