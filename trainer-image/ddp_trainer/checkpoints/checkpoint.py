"""Checkpoints on disk: whole or not there at all.

A checkpoint is a directory `step-00000120` that holds the state and, written last, a manifest with
the state's size and SHA-256. Without a valid manifest there is no checkpoint. Large weights that
are not trained are in a file beside the checkpoints (see `frozen_files`). The manifest names that
file, with size and SHA-256 too; a checkpoint without its file is not complete.

Nothing relies on renaming directories or on fsync alone, since object stores mounted as file
systems offer neither; what was written is read back before an older checkpoint goes.

Only rank 0 uses this module.
"""

from __future__ import annotations

import logging
import math
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from ddp_trainer.checkpoints.checkpoint_files import STATE, StoredState, complete, read
from ddp_trainer.checkpoints.claim import Claim
from ddp_trainer.checkpoints.frozen_files import FrozenFiles
from ddp_trainer.checkpoints.frozen_weights import FrozenWeights
from ddp_trainer.checkpoints.manifest import (
    FORMAT_VERSION,
    FROZEN_FORMAT_VERSION,
    MANIFEST,
    SCORE,
    DamagedError,
    Manifest,
    encode_score,
    read_score,
)
from ddp_trainer.checkpoints.storage import (
    Recorder,
    Transfer,
    read_content,
    sync_directory,
    write_file,
)

_DIRECTORY = re.compile(r"step-(\d{8,})(?:-(\d+))?")
"""`step-<step>`, with `-2`, `-3`, … where the step has been saved before and found damaged."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    path: Path
    step: int
    time: datetime
    """When it was written."""
    seconds: float | None = None
    """How long that took; None: another process did."""

    @classmethod
    def of(cls, path: Path, manifest: Manifest, *, seconds: float | None = None) -> Checkpoint:
        """The checkpoint at `path`, which has this manifest."""
        return cls(path=path, step=manifest.step, time=manifest.time, seconds=seconds)

    def __str__(self) -> str:
        return f"{self.path} (step {self.step})"


class CheckpointDirectory:
    """The checkpoints of one job, newest first: the last few are kept, and the best one."""

    def __init__(
        self, root: Path, *, keep: int, keep_best: bool = True, claim: Claim | None = None
    ) -> None:
        """`claim`: by which one of several processes has it; None: there are no others."""
        self._root = root
        self._claim = claim
        self._keep = keep
        self._keep_best = keep_best
        self._damaged: set[Path] = set()
        self._frozen_files = FrozenFiles(root, self.check)
        self.newest: Checkpoint | None = None
        """The newest checkpoint known to be good; set by `load`, `look` and `save`."""

    def claim(self) -> None:
        """Have it for this process, and against those that it follows.

        Raises:
            SupersededError: another process, which follows this one, has it.
        """
        if self._claim is not None:
            self._claim.make()

    def check(self) -> None:
        """See that this process has it still.

        Raises:
            SupersededError: another process has it.
        """
        if self._claim is not None:
            self._claim.check()

    def load(self) -> StoredState | None:
        """The state of the newest checkpoint that is whole; None if there is none.

        Those that are damaged or cannot be read are passed over with a log line each.

        Raises:
            OSError: nothing can be read of what is there; starting from scratch would hide that.
        """
        unreadable: OSError | None = None
        for path in self._paths():
            try:
                manifest, state = read(path)
            except DamagedError as error:
                _logger.warning("checkpoint %s is damaged (%s): trying the one before", path, error)
                self._damaged.add(path)
            except OSError as error:
                _logger.warning("checkpoint %s: %s: trying the one before", path, error)
                unreadable = error
            else:
                self.newest = Checkpoint.of(path, manifest)
                if manifest.frozen is not None:
                    self._frozen_files.trust(manifest.frozen)
                return state
        if unreadable is not None:
            raise unreadable
        return None

    def look(self) -> None:
        """Find the newest checkpoint by its manifest and sizes, without reading its state."""
        try:
            paths = self._paths()
        except OSError as error:
            _logger.warning("cannot look for checkpoints: %s", error)
            return
        for path in paths:
            manifest = complete(path)
            if manifest is not None:
                self.newest = Checkpoint.of(path, manifest)
                return

    def is_best(self, score: float) -> bool:
        """Whether a model with this score, of which more is better, is worth keeping for it."""
        if not self._keep_best or math.isnan(score):
            return False
        scores = [read_score(path) for path in self._paths() if complete(path) is not None]
        return all(score > other for other in scores if other is not None)

    def save(
        self,
        write_state: Callable[[Recorder], object],
        *,
        step: int,
        transfer: Transfer,
        score: float | None = None,
        frozen: FrozenWeights | None = None,
    ) -> Checkpoint:
        """Write a checkpoint, read it back, then delete those no longer needed.

        A step that is saved already is not written again, but gets the score. `frozen`: weights
        that belong to the state, and that it does not hold; their file stays if the save fails.

        Raises:
            OSError: it could not be written (disk full, permissions); nothing is left of it.
            DamagedError: what was read back is not what was written; nothing is left of it.
            CancelledError: the transfer was called off; nothing is left of it.
            SupersededError: another process has the directory now; nothing is left of it.
        """
        saved = self.newest
        if saved is None or saved.step != step:
            saved = self._write(write_state, step=step, transfer=transfer, frozen=frozen)
            self.newest = saved
        if score is not None:
            content = encode_score(score)
            write_file(saved.path / SCORE, lambda file: file.write(content), transfer)
        self._prune()
        self._prune_frozen_files()
        return saved

    def _write(
        self,
        write_state: Callable[[Recorder], object],
        *,
        step: int,
        transfer: Transfer,
        frozen: FrozenWeights | None,
    ) -> Checkpoint:
        begin = time.monotonic()
        self._root.mkdir(parents=True, exist_ok=True)
        frozen_file = self._frozen_files.store(frozen, transfer) if frozen else None
        path = self._make_directory(step)
        try:
            content = write_file(path / STATE, write_state, transfer)
            manifest = Manifest(
                format_version=FORMAT_VERSION if frozen_file is None else FROZEN_FORMAT_VERSION,
                step=step,
                saved_at=datetime.now(UTC).isoformat(timespec="seconds"),
                state_bytes=content.size,
                state_sha256=content.sha256,
                frozen=frozen_file,
            )
            encoded = manifest.encode()
            self.check()  # it may have taken minutes
            write_file(path / MANIFEST, lambda file: file.write(encoded), transfer)
            sync_directory(path)
            sync_directory(self._root)
            if read_content(path / STATE, transfer) != content:
                raise DamagedError(f"{STATE} reads other than it was written")
            if Manifest.read(path) != manifest:
                raise DamagedError(f"{MANIFEST} reads other than it was written")
            transfer.check()
        except BaseException:
            _delete(path)
            raise
        return Checkpoint.of(path, manifest, seconds=time.monotonic() - begin)

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
        for copy in count(1):
            path = self._root / (f"step-{step:08d}" + (f"-{copy}" if copy > 1 else ""))
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return path
        raise AssertionError("there is always a next number")

    def _prune(self) -> None:
        """Delete all that is older than the newest `keep` good checkpoints, but for the best."""
        paths = self._paths()
        good = [path for path in paths if path not in self._damaged and complete(path)]
        if len(good) <= self._keep:
            return
        scores = {path: score for path in good if (score := read_score(path)) is not None}
        best = max(scores, key=lambda path: scores[path]) if scores and self._keep_best else None
        for path in paths[paths.index(good[self._keep - 1]) + 1 :]:
            if path != best:
                _delete(path)

    def _prune_frozen_files(self) -> None:
        """Delete the files of frozen weights that no checkpoint names, damaged ones included."""
        if not self._frozen_files.paths():
            return
        needed: set[str] = set()
        for path in self._paths():
            try:
                manifest = Manifest.read(path)
            except DamagedError:
                continue
            except OSError as error:
                _logger.warning("keeping all files of frozen weights: %s: %s", path, error)
                return
            if manifest.frozen is not None:
                needed.add(manifest.frozen.name)
        self._frozen_files.prune(needed)


def _delete(path: Path) -> None:
    """Remove a checkpoint, manifest first, so that half of it is never taken for the whole."""
    try:
        (path / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(path)
    except FileNotFoundError:
        pass  # somebody else was quicker
    except OSError as error:
        _logger.warning("cannot delete checkpoint %s: %s", path, error)
