"""Checkpoints on disk: either complete or ignored.

A checkpoint is a directory `step-00000120` with the state and a manifest, which is written last and
contains the state's size and SHA-256. Without a valid manifest it is no checkpoint. Large weights
that are not trained are in a file beside the checkpoints (see `frozen_files`). The manifest also
contains that file's name, size and SHA-256; without its file, a checkpoint is not complete.

Nothing relies on renaming directories or on fsync alone, because object stores mounted as file
systems support neither. A new checkpoint is read back before an older one is deleted.

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
"""`step-<step>`, with `-2`, `-3`, … if an earlier save of the step was found damaged."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    path: Path
    step: int
    time: datetime
    """Time at which it was written."""
    seconds: float | None = None
    """Duration of the save; None: another process wrote it."""

    @classmethod
    def of(cls, path: Path, manifest: Manifest, *, seconds: float | None = None) -> Checkpoint:
        """Return the checkpoint at `path`, which has this manifest."""
        return cls(path=path, step=manifest.step, time=manifest.time, seconds=seconds)

    def __str__(self) -> str:
        return f"{self.path} (step {self.step})"


class CheckpointDirectory:
    """The checkpoints of one job; keeps the newest ones and the best one."""

    def __init__(
        self, root: Path, *, keep: int, keep_best: bool = True, claim: Claim | None = None
    ) -> None:
        """`claim`: decides which of several processes may save; None: there is only one."""
        self._root = root
        self._claim = claim
        self._keep = keep
        self._keep_best = keep_best
        self._damaged: set[Path] = set()
        self._frozen_files = FrozenFiles(root, self.check)
        self.newest: Checkpoint | None = None
        """The newest checkpoint known to be good; set by `load`, `look` and `save`."""

    def claim(self) -> None:
        """Claim the directory for this process against older ones.

        Raises:
            SupersededError: a newer process has claimed it.
        """
        if self._claim is not None:
            self._claim.make()

    def check(self) -> None:
        """Check that this process may still save here.

        Raises:
            SupersededError: a newer process has claimed the directory.
        """
        if self._claim is not None:
            self._claim.check()

    def load(self) -> StoredState | None:
        """Return the state of the newest complete checkpoint; None if there is none.

        Damaged and unreadable checkpoints are skipped with a log line each.

        Raises:
            OSError: checkpoints exist but none can be read; starting from step 0 would hide that.
        """
        unreadable: OSError | None = None
        for path in self._paths():
            try:
                manifest, state = read(path)
            except DamagedError as error:
                _logger.warning(
                    "checkpoint %s is damaged (%s): trying the previous one", path, error
                )
                self._damaged.add(path)
            except OSError as error:
                _logger.warning("checkpoint %s: %s: trying the previous one", path, error)
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
        """Find the newest checkpoint by manifests and sizes, without reading states."""
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
        """Return whether this score (higher is better) beats that of every kept checkpoint."""
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
        """Write a checkpoint, read it back, then delete those that are no longer needed.

        A step that is already saved is not written again; only its score is added. `frozen`:
        weights of the state that are stored in another file. After an error the incomplete
        checkpoint is removed, but the file of frozen weights remains.

        Raises:
            OSError: it could not be written (disk full, permissions).
            DamagedError: the content read back differs from the content written.
            CancelledError: the transfer was cancelled.
            SupersededError: a newer process has claimed the directory.
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
                raise DamagedError(f"{STATE} read back differs from what was written")
            if Manifest.read(path) != manifest:
                raise DamagedError(f"{MANIFEST} read back differs from what was written")
            transfer.check()
        except BaseException:
            _delete(path)
            raise
        return Checkpoint.of(path, manifest, seconds=time.monotonic() - begin)

    def _paths(self) -> list[Path]:
        """Return directories that look like checkpoints, newest first."""
        if not self._root.is_dir():
            return []
        found = [
            (int(match[1]), int(match[2] or 1), path)
            for path in self._root.iterdir()
            if (match := _DIRECTORY.fullmatch(path.name))
        ]
        return [path for _, _, path in sorted(found, reverse=True)]

    def _make_directory(self, step: int) -> Path:
        """Make a new directory for the step; an existing one may still be needed."""
        for copy in count(1):
            path = self._root / (f"step-{step:08d}" + (f"-{copy}" if copy > 1 else ""))
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return path
        raise AssertionError("there is always a next number")

    def _prune(self) -> None:
        """Delete everything older than the newest `keep` good checkpoints, except the best one."""
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
    """Remove a checkpoint, manifest first, so that the rest never counts as complete."""
    try:
        (path / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(path)
    except FileNotFoundError:
        pass  # another process was faster
    except OSError as error:
        _logger.warning("cannot delete checkpoint %s: %s", path, error)
