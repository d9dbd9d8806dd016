"""Detects checkpoints that ranks saved on the pod's own disk, and only there."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from itertools import islice

from ddp_trainer.memory.dcp_files.folders import SavedFolders

LOCAL_PATHS = "DDP_LOCAL_PATHS"
"""Paths on the pod's own disk, separated by colons; the operator sets it."""
_MAX_ENTRIES = 1000
"""Limit of files and folders to check: a script may keep a whole data set there."""


class LocalCheckpoints:
    """Paths on the pod's own disk, and whether ranks wrote to them since the launcher started."""

    def __init__(
        self, paths: Sequence[str], *, since: float, in_memory: SavedFolders | None = None
    ) -> None:
        """`since`: Unix time; older files are not from these ranks.

        `in_memory`: checkpoints that other pods have, too; None: there are none.
        """
        self._paths = paths
        self._since = since
        self._in_memory = in_memory
        self._found = False

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> LocalCheckpoints:
        """Read DDP_LOCAL_PATHS; without it nothing is found."""
        paths = [path for path in env.get(LOCAL_PATHS, "").split(":") if path]
        return cls(paths, since=time.time(), in_memory=SavedFolders.from_env(env))

    @property
    def may_come(self) -> bool:
        """True if files may still appear."""
        return bool(self._paths) and not self._found

    def exist(self) -> bool:
        """Return True if a file was written; once true, it stays true."""
        if self.may_come:
            self._found = any(self._is_written(path) for path in self._paths)
        return self._found

    def _is_written(self, path: str) -> bool:
        left = [path]
        seen = 0
        while left and seen < _MAX_ENTRIES:
            try:
                path = left.pop()
                seen += 1
                if not os.path.isdir(path):
                    is_new = os.stat(path).st_mtime >= self._since
                    if is_new and not (self._in_memory and self._in_memory.have(path)):
                        return True
                    continue
                with os.scandir(path) as entries:
                    room = islice(entries, _MAX_ENTRIES - seen)
                    left += [entry.path for entry in room if not entry.is_symlink()]
            except OSError:  # it was removed, or cannot be read
                continue
        return False
