"""Checkpoints on disk: whole or not there at all.

A checkpoint is a directory `step-00000120` that holds the state and, written last, a manifest with
the state's size and SHA-256. Without a valid manifest there is no checkpoint. Nothing relies on
renaming directories or on fsync alone, since object stores mounted as file systems offer neither;
what was written is read back before an older checkpoint goes.

Only rank 0 uses this module.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_FORMAT_VERSION = 1
_STATE = "state.pt"
_MANIFEST = "manifest.json"
_DIRECTORY = re.compile(r"step-(\d{8,})(?:-(\d+))?")
"""`step-<step>`, with `-2`, `-3`, … where the step has been saved before and found damaged."""

_logger = logging.getLogger(__name__)


class DamagedError(Exception):
    """A checkpoint is incomplete or not what was written; the message says in which way."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a complete checkpoint consists of."""

    format_version: int
    step: int
    state_bytes: int
    state_sha256: str


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    path: Path
    step: int

    def __str__(self) -> str:
        return f"{self.path} (step {self.step})"


class CheckpointDirectory:
    """The checkpoints of one job, newest first, of which the last few are kept."""

    def __init__(self, root: Path, *, keep: int) -> None:
        self._root = root
        self._keep = keep
        self._damaged: set[Path] = set()
        self.newest: Checkpoint | None = None
        """The newest checkpoint known to be good; set by `load`, `look` and `save`."""

    def load(self) -> bytes | None:
        """The state of the newest checkpoint that is whole; None if there is none.

        Damaged ones are passed over with a log line each.

        Raises:
            OSError: the directory cannot be read; starting from scratch would hide that.
        """
        for path in self._paths():
            try:
                manifest, state = _read(path)
            except DamagedError as error:
                _logger.warning("checkpoint %s is damaged (%s): trying the one before", path, error)
                self._damaged.add(path)
                continue
            self.newest = Checkpoint(path=path, step=manifest.step)
            return state
        return None

    def look(self) -> None:
        """Find the newest checkpoint by its manifest and sizes, without reading its state."""
        complete = (path for path in self._paths() if _looks_complete(path))
        path = next(complete, None)
        if path is not None:
            self.newest = Checkpoint(path=path, step=_read_manifest(path).step)

    def save(self, state: bytes, *, step: int) -> Checkpoint:
        """Write a checkpoint, read it back, then delete the oldest ones.

        Raises:
            OSError: it could not be written (disk full, permissions); nothing is left of it.
            DamagedError: what was read back is not what was written; nothing is left of it.
        """
        self._root.mkdir(parents=True, exist_ok=True)
        path = self._make_directory(step)
        manifest = Manifest(
            format_version=_FORMAT_VERSION,
            step=step,
            state_bytes=len(state),
            state_sha256=hashlib.sha256(state).hexdigest(),
        )
        try:
            _write_file(path / _STATE, state)
            _write_file(path / _MANIFEST, _encode(manifest))
            _sync_directory(path)
            _sync_directory(self._root)
            _read(path)
        except BaseException:
            _delete(path)
            raise
        self.newest = Checkpoint(path=path, step=step)
        self._prune()
        return self.newest

    def _paths(self) -> list[Path]:
        """Directories that look like checkpoints, newest first."""
        if not self._root.is_dir():
            return []
        found = [
            (int(match[1]), int(match[2] or 1), path)
            for path in self._root.iterdir()
            if (match := _DIRECTORY.fullmatch(path.name))
        ]
        return [path for _, _, path in sorted(found, reverse=True)]

    def _make_directory(self, step: int) -> Path:
        """A new directory for the step: one that exists may hold what somebody still needs."""
        name = f"step-{step:08d}"
        taken = {path.name for path in self._paths()}
        copy = 1
        while name in taken:
            copy += 1
            name = f"step-{step:08d}-{copy}"
        path = self._root / name
        path.mkdir()
        return path

    def _prune(self) -> None:
        """Delete all that is older than the newest `keep` good checkpoints."""
        good = 0
        for path in self._paths():
            if good >= self._keep:
                _delete(path)
            elif path not in self._damaged and _looks_complete(path):
                good += 1


def _read(path: Path) -> tuple[Manifest, bytes]:
    """Manifest and state of the checkpoint at `path`.

    Raises:
        DamagedError: it is not whole.
        OSError: it cannot be read for another reason than being incomplete.
    """
    manifest = _read_manifest(path)
    try:
        state = (path / _STATE).read_bytes()
    except FileNotFoundError:
        raise DamagedError(f"{_STATE} is missing") from None
    if len(state) != manifest.state_bytes:
        raise DamagedError(f"{_STATE} has {len(state)} bytes instead of {manifest.state_bytes}")
    if hashlib.sha256(state).hexdigest() != manifest.state_sha256:
        raise DamagedError(f"the checksum of {_STATE} does not match")
    return manifest, state


def _read_manifest(path: Path) -> Manifest:
    try:
        text = (path / _MANIFEST).read_bytes()
    except FileNotFoundError:
        raise DamagedError(f"{_MANIFEST} is missing, so it was never completed") from None
    try:
        content: Any = json.loads(text)
        body: Mapping[str, Any] = content["checkpoint"]
        if content["sha256"] != _digest(body):
            raise DamagedError(f"the checksum of {_MANIFEST} does not match")
        if body["format_version"] != _FORMAT_VERSION:
            raise DamagedError(
                f"format version {body['format_version']} is not {_FORMAT_VERSION}, "
                "the only one that this trainer reads"
            )
        return Manifest(**body)
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedError(f"{_MANIFEST} cannot be read: {error}") from error


def _looks_complete(path: Path) -> bool:
    """Whether manifest and sizes are right; the state itself is not read again."""
    try:
        return (path / _STATE).stat().st_size == _read_manifest(path).state_bytes
    except (OSError, DamagedError):
        return False


def _encode(manifest: Manifest) -> bytes:
    body = asdict(manifest)
    return json.dumps({"checkpoint": body, "sha256": _digest(body)}, indent=2).encode()


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _write_file(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _delete(path: Path) -> None:
    """Remove a checkpoint, manifest first, so that half of it is never taken for the whole."""
    try:
        (path / _MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(path)
    except OSError as error:
        _logger.warning("cannot delete checkpoint %s: %s", path, error)
