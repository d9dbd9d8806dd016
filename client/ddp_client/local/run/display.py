"""Shows a run to people: as plain lines here, as a live view in `live`."""

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Protocol, Self

from ddp_operator.job.pods.state import PodState

from ddp_client.local.run.run_state import RunState
from ddp_client.text import columns
from ddp_client.views.job.screen import Fact


class Display(Protocol):
    """A context that shows a run."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def log(self, pod: PodState | None, line: str) -> None:
        """Show a line that a pod printed."""

    def event(self, reason: str, message: str, *, warning: bool) -> None:
        """Show an action of the operator or of this command."""

    def note(self, text: str) -> None:
        """Show useful information."""

    def refresh(self) -> None:
        """Show the present state of the run."""

    def summary(self, title: str, lines: Sequence[Fact], *, good: bool) -> None:
        """Show the result of the run."""


class SafeDisplay:
    """Passes everything to a display, until that one fails, for example on a closed pipe.

    Its callers are the tasks that end the pods, so an error must not reach them.
    """

    def __init__(self, display: Display) -> None:
        self._display = display
        self.error: BaseException | None = None
        """Why nothing is shown any more."""
        self.on_failure: Callable[[], None] = lambda: None

    def __enter__(self) -> Self:
        self._show(self._display.__enter__)
        return self

    def __exit__(self, *error: object) -> None:
        self._show(lambda: self._display.__exit__(*error))

    def log(self, pod: PodState | None, line: str) -> None:
        """See `Display`."""
        self._show(lambda: self._display.log(pod, line))

    def event(self, reason: str, message: str, *, warning: bool) -> None:
        """See `Display`."""
        self._show(lambda: self._display.event(reason, message, warning=warning))

    def note(self, text: str) -> None:
        """See `Display`."""
        self._show(lambda: self._display.note(text))

    def refresh(self) -> None:
        """See `Display`."""
        self._show(self._display.refresh)

    def summary(self, title: str, lines: Sequence[Fact], *, good: bool) -> None:
        """See `Display`."""
        self._show(lambda: self._display.summary(title, lines, good=good))

    def _show(self, action: Callable[[], object]) -> None:
        if self.error is not None:
            return
        try:
            action()
        except (Exception, SystemExit) as error:  # rich exits if its pipe is closed
            self.error = error
            _discard_output()
            self.on_failure()


def _discard_output() -> None:
    """Send what is still buffered nowhere: the interpreter writes it at its end."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


class PlainDisplay:
    """Lines for files, pipes and CI, one for each event, in order."""

    def __init__(self, run_state: RunState) -> None:
        self._run_state = run_state
        self._shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """End; every line is written."""

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

    def summary(self, title: str, lines: Sequence[Fact], *, good: bool) -> None:  # noqa: ARG002
        """See `Display`."""
        sys.stdout.write(f"\n{title}\n")
        for line in columns(lines):
            sys.stdout.write(f"  {line}\n")
        sys.stdout.flush()

    def _print(self, text: str) -> None:
        sys.stdout.write(f"{self._run_state.elapsed_seconds:6.1f}s {text}\n")
        sys.stdout.flush()
