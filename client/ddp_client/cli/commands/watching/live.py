"""A screen that is drawn again in its place."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

Draw = Callable[[Sequence[str]], None]


@contextmanager
def drawing() -> Iterator[Draw]:
    """Yield a function that draws lines in place of those it drew before."""
    # Imported here: other commands should not wait for it.
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(force_terminal=True, highlight=False)
    with Live(console=console, auto_refresh=False) as live:

        def draw(lines: Sequence[str]) -> None:
            live.update(Text("\n".join(lines), no_wrap=True, overflow="crop"), refresh=True)

        yield draw
