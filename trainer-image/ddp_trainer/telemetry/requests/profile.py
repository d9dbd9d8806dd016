"""Passes requests for a profile of a few steps between the launcher and ranks, in files.

The files are beside the pod's status file. Without a request, a rank only checks for one file after
each step.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ddp_trainer.telemetry.status import STATUS_FILE_VARIABLE, replace_file

MAX_STEPS = 20
MAX_BYTES = 64 * 1024 * 1024
"""Limit of a compressed trace, which is kept in memory."""
_FORGOTTEN_SECONDS = 600.0
"""After this time, an unfinished request no longer blocks new ones."""


class ProfileError(Exception):
    """There is no profile; the message says why."""


class ProfileFiles:
    """The request to one rank, and its answer."""

    def __init__(self, status_file: Path, rank: int) -> None:
        """Set the paths; no file is read yet."""

        def beside(kind: str) -> Path:
            return status_file.with_name(f".{status_file.name}.profile-{rank}.{kind}")

        self._looks = beside("looks")
        self._asked = beside("asked")
        self._running = beside("running")
        self._problem = beside("problem")
        self.trace = beside("json.gz")
        """The finished trace; a rank first writes it under another name."""

    @classmethod
    def from_env(cls, env: Mapping[str, str], rank: int) -> ProfileFiles | None:
        """Prepare the files for a rank, which checks them from now on; None without a launcher."""
        path = env.get(STATUS_FILE_VARIABLE)
        if not path:
            return None
        files = cls(Path(path), rank)
        try:
            files._clear()
            files._looks.touch()
        except OSError:
            return None  # without profiles, training can continue
        return files

    def ask(self, steps: int) -> None:
        """Ask the rank for a profile of its next steps.

        Raises:
            ProfileError: the rank does not check for requests, or already makes a profile.
            OSError: the request cannot be written.
        """
        if not self._looks.exists():
            raise ProfileError("it takes no steps through ddp_trainer (yet)")
        for path in (self._asked, self._running):
            if path.exists() and time.time() - path.stat().st_mtime < _FORGOTTEN_SECONDS:
                raise ProfileError("another request for a profile is not done")
        self._clear()
        replace_file(self._asked, str(steps))

    def answer(self) -> bytes | None:
        """Return the trace in Chrome's format, compressed; None: it is not ready.

        Raises:
            ProfileError: there will be no trace; the message says why.
            OSError: it cannot be read.
        """
        if self._problem.exists():
            raise ProfileError(self._problem.read_text(errors="replace")[:512])
        if self.trace.exists():
            return self.trace.read_bytes()
        if not (self._asked.exists() or self._running.exists()):
            raise ProfileError("no profile was requested")
        return None

    def forget(self) -> None:
        """Delete the trace after it was read, to free its memory."""
        self.trace.unlink(missing_ok=True)

    def take(self) -> int | None:
        """Take the request, and return its number of steps; None: there is none."""
        if not self._asked.exists():
            return None
        self._asked.replace(self._running)
        return int(self._running.read_text())

    def look_away(self) -> None:
        """Stop checking for requests: this process is another rank now."""
        with contextlib.suppress(OSError):
            self._looks.unlink(missing_ok=True)

    def fail(self, problem: str) -> None:
        """Report that there will be no trace, and why."""
        replace_file(self._problem, problem)
        self._running.unlink(missing_ok=True)

    def finish(self, trace: Path) -> None:
        """Publish the finished trace."""
        trace.replace(self.trace)
        self._running.unlink(missing_ok=True)

    def _clear(self) -> None:
        for path in (self._asked, self._running, self._problem, self.trace):
            path.unlink(missing_ok=True)


def wanted(query: Mapping[str, Sequence[str]]) -> tuple[list[int], int]:
    """Return the ranks and the number of steps in a request.

    Raises:
        ValueError: they are missing or out of range.
    """
    try:
        ranks = sorted({int(each) for word in query["ranks"] for each in word.split(",")})
        [word] = query.get("steps", ["1"])
        steps = int(word)
    except (KeyError, ValueError):
        raise ValueError("ranks, steps: set them as in ranks=0,1 and steps=5") from None
    if not 1 <= steps <= MAX_STEPS:
        raise ValueError(f"steps={steps}: choose 1 to {MAX_STEPS}")
    return ranks, steps
