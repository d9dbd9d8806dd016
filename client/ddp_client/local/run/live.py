"""Shows a run on a terminal: logs scroll, and a panel below them shows the present state."""

from collections.abc import Sequence
from typing import Self

from ddp_operator.job.pods.state import PodState
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ddp_client.local.run.run_state import RunState
from ddp_client.views.job.screen import Fact

_REFRESHES_PER_SECOND = 4
_RANK_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_red")
_PHASE_COLOURS = {
    "Running": "green",
    "Succeeded": "green",
    "Failed": "red",
    "Restarting": "yellow",
}
_MOST_PODS = 8
"""More rows than this would push the logs off a small terminal."""


class LiveDisplay:
    """Implements `Display` with rich."""

    def __init__(self, run_state: RunState, console: Console) -> None:
        self._run_state = run_state
        self._console = console
        self._live = Live(
            console=console,
            get_renderable=self._panel,
            refresh_per_second=_REFRESHES_PER_SECOND,
            transient=True,
        )

    def __enter__(self) -> Self:
        # If two threads drew it for the first time, it would share a line with what is printed.
        self._live.start(refresh=True)
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def log(self, pod: PodState | None, line: str) -> None:
        """See `Display`."""
        name = self._run_state.speaker(pod) if pod else "pod"
        # Cut at the edge of the terminal; the log file has the whole line.
        text = Text.assemble(
            (f"{name} │ ", _colour(pod)), Text.from_ansi(line.replace(f"[{name}] ", "", 1))
        )
        self._console.print(text, no_wrap=True, overflow="ellipsis")

    def event(self, reason: str, message: str, *, warning: bool) -> None:
        """See `Display`."""
        mark, style = ("▲ ", "bold yellow") if warning else ("● ", "bold green")
        self._print(Text.assemble((mark + reason, style), " ", message))

    def note(self, text: str) -> None:
        """See `Display`."""
        self._print(Text(text, style="dim"))

    def refresh(self) -> None:
        """See `Display`; the panel refreshes itself."""

    def summary(self, title: str, lines: Sequence[Fact], *, good: bool) -> None:
        """See `Display`."""
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for line in lines:
            table.add_row(*line)
        colour = "green" if good else "red"
        self._print(Panel(table, title=f"[bold]{title}[/]", border_style=colour))

    def _print(self, what: RenderableType) -> None:
        self._console.print(what)

    def _panel(self) -> Panel:
        run_state, status = self._run_state, self._run_state.job.status
        minutes, seconds = divmod(int(run_state.elapsed_seconds), 60)
        colour = _PHASE_COLOURS.get(status.phase, "white")
        facts = Text.assemble(
            "ready ",
            (status.ready or "-", "bold"),
            "   attempt ",
            (str(status.attempt), "bold"),
            "   restarts ",
            (f"{status.restarts} of {run_state.job.spec.restart.max_restarts}", "bold"),
            "   disruptions ",
            (str(status.disruptions), "bold"),
        )
        title = Text.assemble(" ", run_state.job.name, " · ", (status.phase, f"bold {colour}"), " ")
        return Panel(
            Group(facts, *self._progress(), self._pods()),
            title=title,
            title_align="left",
            subtitle=f" {minutes}:{seconds:02} ",
            subtitle_align="right",
            border_style=colour,
        )

    def _progress(self) -> list[RenderableType]:
        progress = self._run_state.progress
        if progress is None:
            return []
        line = Text(progress.text, no_wrap=True, overflow="ellipsis")
        if not progress.total_steps:
            return [line]
        bar = ProgressBar(total=progress.total_steps, completed=progress.step)
        return [line, bar]

    def _pods(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for column in ("rank", "pod"):
            table.add_column(column, no_wrap=True)
        table.add_column("state", no_wrap=True, overflow="ellipsis")
        ordered = sorted(self._run_state.pods, key=lambda pod: (pod.identity.index, pod.key.name))
        for pod in ordered[:_MOST_PODS]:
            state = Text.assemble("● ", _state(pod), style=_state_style(pod))
            table.add_row(Text(self._run_state.speaker(pod), _colour(pod)), pod.key.name, state)
        if len(ordered) > _MOST_PODS:
            table.add_row("", f"and {len(ordered) - _MOST_PODS} more", "")
        return table


def _colour(pod: PodState | None) -> str:
    return _RANK_COLOURS[pod.identity.index % len(_RANK_COLOURS)] if pod else "white"


def _state(pod: PodState) -> str:
    if pod.deleting:
        return "terminating"
    if pod.exit is not None:
        return "done" if pod.succeeded else f"failed with exit code {pod.exit.code}"
    return pod.waiting or pod.phase.lower()


def _state_style(pod: PodState) -> str:
    if pod.failed or pod.waiting:
        return "red"
    if pod.deleting:
        return "yellow"
    return "green" if pod.ready or pod.succeeded else "white"
