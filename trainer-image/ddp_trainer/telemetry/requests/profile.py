"""A profile of a few steps that somebody outside asks for: files between the launcher and ranks.

They lie beside the pod's status. A rank looks for one file after each step, which is all that it
costs as long as nobody asks.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ddp_trainer.telemetry.status import STATUS_FILE_VARIABLE, replace_file

MAX_STEPS = 20
MAX_BYTES = 64 * 1024 * 1024
"""Of a trace, packed: it is kept in memory."""
_FORGOTTEN_SECONDS = 600.0
"""A request that was not done by then stands in nobody's way."""


class ProfileError(Exception):
    """There is no profile; the message says why."""


class ProfileFiles:
    """What one rank is asked, and what it answers."""

    def __init__(self, status_file: Path, rank: int) -> None:
        """Nothing is looked at yet."""

        def beside(kind: str) -> Path:
            return status_file.with_name(f".{status_file.name}.profile-{rank}.{kind}")

        self._looks = beside("looks")
        self._asked = beside("asked")
        self._running = beside("running")
        self._problem = beside("problem")
        self.trace = beside("json.gz")
        """The finished one; a rank writes it under another name first."""

    @classmethod
    def from_env(cls, env: Mapping[str, str], rank: int) -> ProfileFiles | None:
        """As a rank finds them, which looks from here on; None where no launcher listens."""
        path = env.get(STATUS_FILE_VARIABLE)
        if not path:
            return None
        files = cls(Path(path), rank)
        try:
            files._clear()
            files._looks.touch()
        except OSError:
            return None  # what cannot be told is no reason to end a training
        return files

    def ask(self, steps: int) -> None:
        """Ask the rank for a profile of its next steps.

        Raises:
            ProfileError: it does not look, or makes one already.
            OSError: it cannot be asked.
        """
        if not self._looks.exists():
            raise ProfileError("it takes no steps through ddp_trainer (yet)")
        for path in (self._asked, self._running):
            if path.exists() and time.time() - path.stat().st_mtime < _FORGOTTEN_SECONDS:
                raise ProfileError("somebody else has asked for one that is not done")
        self._clear()
        replace_file(self._asked, str(steps))

    def answer(self) -> bytes | None:
        """The trace, as Chrome reads it, packed; None: it is not done.

        Raises:
            ProfileError: there will be none.
            OSError: it cannot be read.
        """
        if self._problem.exists():
            raise ProfileError(self._problem.read_text(errors="replace")[:512])
        if self.trace.exists():
            return self.trace.read_bytes()
        if not (self._asked.exists() or self._running.exists()):
            raise ProfileError("nobody has asked for one")
        return None

    def forget(self) -> None:
        """The answer was read: it needs no memory any more."""
        self.trace.unlink(missing_ok=True)

    def take(self) -> int | None:
        """The steps that are asked for, once; None: none are."""
        if not self._asked.exists():
            return None
        self._asked.replace(self._running)
        return int(self._running.read_text())

    def look_away(self) -> None:
        """The process that looked is another rank now."""
        with contextlib.suppress(OSError):
            self._looks.unlink(missing_ok=True)

    def fail(self, problem: str) -> None:
        """There will be no trace."""
        replace_file(self._problem, problem)
        self._running.unlink(missing_ok=True)

    def finish(self, trace: Path) -> None:
        """This is the trace."""
        trace.replace(self.trace)
        self._running.unlink(missing_ok=True)

    def _clear(self) -> None:
        for path in (self._asked, self._running, self._problem, self.trace):
            path.unlink(missing_ok=True)


def wanted(query: Mapping[str, Sequence[str]]) -> tuple[list[int], int]:
    """The ranks and the steps that a request names.

    Raises:
        ValueError: it names others than there may be.
    """
    try:
        ranks = sorted({int(each) for word in query["ranks"] for each in word.split(",")})
        [word] = query.get("steps", ["1"])
        steps = int(word)
    except (KeyError, ValueError):
        raise ValueError("say ranks=0,1 and steps=5") from None
    if not 1 <= steps <= MAX_STEPS:
        raise ValueError(f"steps={steps}: choose 1 to {MAX_STEPS}")
    return ranks, steps
