"""The checkpoints of DCP that ranks of this pod saved on its own disk and keep in memory, too.

A file in the volume lists them. So the launcher can tell them from other files, and the ranks of
the next generation remove what other pods do not have. Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ddp_trainer.memory.volume import DIRECTORY_VARIABLE
from ddp_trainer.telemetry.requests.files import open_regular
from ddp_trainer.telemetry.status import replace_file

ROOT_VARIABLE = "DDP_CHECKPOINTS_IN_MEMORY"
"""The folder with the checkpoints; a user sets it."""
METADATA = ".metadata"
"""The file that DCP writes last. Scripts take a folder without it for a torn checkpoint."""
_LOCAL_PATHS_VARIABLE = "DDP_LOCAL_PATHS"
"""As in `launcher.local_checkpoints`: paths on the pod's own disk."""
_OF_DCP = re.compile(r"(__\d+)?\.metadata(\.tmp)?|__\d+_\d+\.distcp", re.ASCII)
"""Names of the files in a checkpoint of DCP."""
_MOST_BYTES = 1 << 20
_LOCK_SECONDS = 300.0
"""Longer than a rank waits for the decision about a restore while it holds the lock."""
_PAUSE_SECONDS = 0.02


@dataclass
class Saved:
    """The content of the list."""

    folders: dict[str, int] = field(default_factory=dict)
    """The generation that saved a folder last, by its real path."""
    generation: int = -1
    """In this generation the ranks agreed on what they resume from."""
    restored: str = ""
    """The folder that they resume from; empty: none."""
    step: int = 0
    """The step of its snapshot."""

    @property
    def is_in_memory(self) -> bool:
        """True if the folder to resume from was not saved again since."""
        return bool(self.restored) and self.folders.get(self.restored, -1) < self.generation


class SavedFolders:
    """The list of one pod, for several processes."""

    def __init__(self, volume: Path) -> None:
        """`volume`: the folder of the volume in memory."""
        self._path = volume / "dcp.json"
        self._read: tuple[tuple[int, int], frozenset[str]] | None = None
        """State of the file when `have` read it, and the folders then."""

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> SavedFolders | None:
        """Return the list; None: the job keeps no checkpoints of files in memory."""
        volume = env.get(DIRECTORY_VARIABLE)
        return cls(Path(volume)) if volume and env.get(ROOT_VARIABLE) else None

    def read(self) -> Saved:
        """Return the content; it is empty if there is none, or it is not valid."""
        with contextlib.suppress(OSError, ValueError, RecursionError):
            with open_regular(self._path) as file:
                text = file.read(_MOST_BYTES + 1)
            document = json.loads(text) if len(text) <= _MOST_BYTES else None
            return _saved(document) or Saved()
        return Saved()

    @contextmanager
    def changed(self) -> Iterator[Saved]:
        """Read the list, and write it with the caller's changes; others wait meanwhile.

        Raises:
            OSError: it cannot be written, or another process does not release it.
        """
        path = self._path.with_suffix(".lock")
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        try:
            lock(descriptor)
            saved = self.read()
            yield saved
            replace_file(self._path, json.dumps(asdict(saved)))
        finally:
            os.close(descriptor)

    def note(self, folder: str, generation: int) -> None:
        """Add a folder before anything is written there; forget those that a script removed.

        Raises:
            OSError: the list cannot be written.
        """
        with self.changed() as saved:
            kept = {path: by for path, by in saved.folders.items() if os.path.isdir(path)}
            saved.folders = {**kept, folder: generation}

    def have(self, path: str) -> bool:
        """Return whether a file is part of a listed checkpoint."""
        folder, name = os.path.split(path)
        if _OF_DCP.fullmatch(name) is None:
            return False
        try:
            status = self._path.lstat()
        except OSError:
            return False
        state = status.st_ino, status.st_mtime_ns
        if self._read is None or self._read[0] != state:
            self._read = state, frozenset(self.read().folders)
        return os.path.realpath(folder) in self._read[1]


def root_of(env: Mapping[str, str]) -> str | None:
    """Return the real path of the folder to keep; None if other pods may see it, too."""
    root = os.path.realpath(env[ROOT_VARIABLE])
    own = [path for path in env.get(_LOCAL_PATHS_VARIABLE, "").split(":") if path]
    return root if any(is_below(root, os.path.realpath(path)) for path in own) else None


def is_below(path: str, folder: str) -> bool:
    """Return whether a real path is a folder or in it."""
    return Path(path).is_relative_to(folder)


def remove(folder: str) -> None:
    """Remove the files of a checkpoint, the one first without which it is none.

    Raises:
        OSError: one cannot be removed.
    """
    try:
        names = [name for name in os.listdir(folder) if _OF_DCP.fullmatch(name)]
    except FileNotFoundError:
        return
    for name in sorted(names, key=lambda name: name != METADATA):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, name))
    with contextlib.suppress(OSError):  # the script may have other files there
        os.rmdir(folder)


def lock(descriptor: int) -> None:
    """Lock a file until its descriptor is closed.

    Raises:
        TimeoutError: another process or thread does not release it.
    """
    until = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > until:
                raise TimeoutError("another process holds the checkpoints in memory") from None
            time.sleep(_PAUSE_SECONDS)


def _saved(document: object) -> Saved | None:
    """Return the list in a document; None: it is not valid."""
    match document:
        case {
            "folders": dict(folders),
            "generation": int(generation),
            "restored": str(restored),
            "step": int(step),
        } if all(type(by) is int for by in folders.values()):
            return Saved(folders, generation, restored, step)
    return None
