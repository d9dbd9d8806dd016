"""Shows a run to people: as plain lines here, as a live view in `live`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from ddp_operator.job.pods.state import PodState

from ddp_client.local.run.run_state import RunState


@dataclass(frozen=True)
class Line:
    """One row of the summary: label and text."""

    label: str
    text: str


class Display(Protocol):
    """A context that shows a run."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def log(self, pod: PodState | None, line: str) -> None:
        """Show a line that a pod printed."""

    def event(self, reason: str, message: str, *, warning: bool) -> None:
        """Show an action of the operator or of this command."""

    def note(self, text: str) -> None:
        """Show useful information."""

    def refresh(self) -> None:
        """Show the present state of the run."""

    def summary(self, title: str, lines: Sequence[Line], *, good: bool) -> None:
        """Show the result of the run."""


class PlainDisplay:
    """Lines for files, pipes and CI, one for each event, in order."""

    def __init__(self, run_state: RunState) -> None:
        self._run_state = run_state
        self._shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None

    def log(self, pod: PodState | None, line: str) -> None:
        """See `Display`."""
        self._print(f"{self._run_state.speaker(pod) if pod else 'pod'} | {line}")

    def event(self, reason: str, message: str, *, warning: bool) -> None:
        """See `Display`."""
        self._print(f"{'!' if warning else '*'} {reason}: {message}")

    def note(self, text: str) -> None:
        """See `Display`."""
        self._print(f"  {text}")

    def refresh(self) -> None:
        """Print changes of the job's own state."""
        status = self._run_state.job.status
        state = (
            f"= {status.phase}: ready {status.ready or '-'}, attempt {status.attempt}, "
            f"restarts {status.restarts}"
        )
        if state != self._shown:
            self._shown = state
            self._print(state)

    def summary(self, title: str, lines: Sequence[Line], *, good: bool) -> None:  # noqa: ARG002
        """See `Display`."""
        sys.stdout.write(f"\n{title}\n")
        width = max(len(line.label) for line in lines)
        for line in lines:
            sys.stdout.write(f"  {line.label:<{width}}  {line.text}\n")
        sys.stdout.flush()

    def _print(self, text: str) -> None:
        sys.stdout.write(f"{self._run_state.elapsed_seconds:6.1f}s {text}\n")
        sys.stdout.flush()
