"""Prepares a rank whose script saves with DCP to the pod's own disk, before the script runs.

After a restart the pods' disks differ: a new pod's is empty, and others may have a save that some
pod did not finish. So each pod removes what it saved, except for the checkpoint that the launchers
chose. Where that is missing, a folder with an empty `.metadata` stands for it. So any script finds
the same newest checkpoint in all pods. `patches` lets DCP read it from memory.
"""

from __future__ import annotations

import importlib
import importlib.util
import mmap
import os
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from ddp_trainer.exit_codes import ConfigurationError, ExitCode
from ddp_trainer.memory.dcp_files.folders import (
    METADATA,
    ROOT_VARIABLE,
    SavedFolders,
    is_below,
    remove,
    root_of,
)
from ddp_trainer.memory.file_format import decode
from ddp_trainer.memory.loading import LoadDecision, NoSnapshotError, ask
from ddp_trainer.settings.environment import Environment

_MODULE = "torch.distributed.checkpoint.filesystem"
_PATCHES = "ddp_trainer.memory.dcp_files.patches"


def begin(env: Mapping[str, str]) -> None:
    """Prepare this process and, once in each generation, its pod.

    Raises:
        SystemExit: other ranks may resume from a checkpoint that this one does not get.
    """
    folders = SavedFolders.from_env(env)
    if folders is None:
        return
    try:
        environment, root = Environment.from_env(env), root_of(env)
    except ConfigurationError as error:  # a process that the script started for another purpose
        _say(f"no checkpoints are kept in memory: {error}")
        return
    if root is None:
        if environment.local_rank == 0:
            _say(
                f"no checkpoints are kept in memory: {ROOT_VARIABLE} is {env[ROOT_VARIABLE]}, "
                "which is no emptyDir of a job with several pods; set it to the folder of the "
                "checkpoints, in an emptyDir, or remove it"
            )
        return
    try:
        settle(environment, folders, root)
    except ConfigurationError as error:
        _say(str(error))
        raise SystemExit(int(ExitCode.CONFIGURATION)) from error
    except (NoSnapshotError, OSError, ValueError) as error:
        _say(f"cannot resume from memory: {error}")
        raise SystemExit(int(ExitCode.FAILURE)) from error
    _patch_once_imported()


def settle(environment: Environment, folders: SavedFolders, root: str) -> None:
    """Leave only the checkpoint that all pods resume from; the first rank of a pod does it.

    Raises:
        NoSnapshotError: the launcher does not say which one, or its snapshot cannot be read.
        ConfigurationError: the snapshot is none of a checkpoint below `root`.
        OSError: a checkpoint cannot be removed.
    """
    generation = environment.placement.generation
    with folders.changed() as saved:
        if saved.generation >= generation:
            return
        restored, step = "", 0
        if generation > 0:  # before, no group can have saved
            answer = ask(environment)
            if answer.path is not None:
                restored, step = _folder(answer, root), answer.step
                saved.folders[restored] = answer.generation
        removed = [path for path in saved.folders if path != restored]
        for path in removed:
            remove(path)
            del saved.folders[path]
        if restored:
            os.makedirs(restored, exist_ok=True)
            with open(os.path.join(restored, METADATA), "ab"):
                pass  # DCP never reads it while the checkpoint is in memory
        saved.generation, saved.restored, saved.step = generation, restored, step
    if restored or removed:
        which = f"{restored} is in memory" if restored else "there is none in memory"
        _say(f"resuming from a checkpoint: {which}; removed {len(removed)} that others may lack")


def _folder(answer: LoadDecision, root: str) -> str:
    """Return the folder that a snapshot stands for."""
    with open(answer.path or "", "rb") as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        tree = decode(memoryview(content))[0].tree
    folder = tree.get("folder") if isinstance(tree, dict) else None
    if not isinstance(folder, str):
        raise ConfigurationError(
            f"the snapshot in memory is not of a checkpoint of DCP: remove {ROOT_VARIABLE}, or the "
            "script's own calls of ddp_trainer.memory"
        )
    path = os.path.realpath(Path(root, folder))
    if not is_below(path, root):
        raise ConfigurationError(f"the snapshot in memory is of {folder:.200}, not below {root}")
    return path


def _patch_once_imported() -> None:
    if _MODULE in sys.modules:
        _patch(sys.modules[_MODULE])
    else:
        sys.meta_path.insert(0, _PatchAtImport())


class _PatchAtImport:
    """Patches DCP's storage in files as soon as the script imports it."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_patch(module: ModuleType) -> None:
            execute(module)
            _patch(module)

        spec.loader.exec_module = execute_and_patch  # type: ignore[method-assign]
        return spec


def _patch(module: ModuleType) -> None:
    try:
        importlib.import_module(_PATCHES).patch(module, os.environ)
    except Exception as error:  # a torch with other classes; saves to the disk still work
        _say(f"no checkpoints are kept in memory: {type(error).__name__}: {error}")


def _say(sentence: str) -> None:
    print(f"ddp_trainer: {sentence}", file=sys.stderr, flush=True)
