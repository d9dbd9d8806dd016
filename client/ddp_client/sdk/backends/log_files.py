"""Log files of local pods, with timestamps, as a kubelet keeps them.

Lines are on disk because a log may be larger than memory. A log can be read while it is written.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO, Final

from ddp_operator.ports import Key

_BLOCK: Final = 1 << 16
_TICK: Final = timedelta(microseconds=1)


class LogFiles:
    """One log file for each pod."""

    def __init__(self, file_of: Callable[[Key], Path]) -> None:
        self._file_of = file_of
        self._latest: dict[Key, datetime] = {}
        self._news = asyncio.Event()

    def add(self, pod: Key, line: str) -> None:
        """Append a line; each line of a pod gets a different time."""
        now = max(
            datetime.now(UTC), self._latest.get(pod, datetime.min.replace(tzinfo=UTC)) + _TICK
        )
        self._latest[pod] = now
        # A full disk loses these lines, but does not stop the training.
        with contextlib.suppress(OSError), self._file_of(pod).open("a", encoding="utf-8") as file:
            file.write(f"{now.isoformat(timespec='microseconds')} {line}\n")
        self.wake()

    def wake(self) -> None:
        """Wake followers after a new line or the end of a pod."""
        self._news.set()
        self._news = asyncio.Event()

    async def read(
        self,
        pod: Key,
        options: Mapping[str, str],
        *,
        idle_seconds: float,
        ended: Callable[[], bool],
    ) -> AsyncGenerator[bytes, None]:
        """Yield a log in pieces; `options` are those of the API server.

        With `follow`, continue until the pod has ended, or no line came for `idle_seconds`.
        """
        path = self._file_of(pod)
        try:
            file = path.open("rb", buffering=_BLOCK)
        except OSError:
            return  # no output yet
        with file:
            _go_to_start(file, options)
            while True:
                over, news = ended(), self._news  # must be read before the rest of the file
                while piece := file.read(_BLOCK):
                    yield piece
                if over or "follow" not in options:
                    return
                try:
                    await asyncio.wait_for(news.wait(), idle_seconds)
                except TimeoutError:
                    return


def _go_to_start(file: BinaryIO, options: Mapping[str, str]) -> None:
    if "tailLines" in options:
        _go_to_last(file, int(options["tailLines"]))
    since = _since(options)
    while since is not None:
        at, line = file.tell(), file.readline()
        if not line or datetime.fromisoformat(line.split(b" ", 1)[0].decode()) >= since:
            file.seek(at)
            return


def _since(options: Mapping[str, str]) -> datetime | None:
    if "sinceTime" in options:
        return datetime.fromisoformat(options["sinceTime"])
    if "sinceSeconds" in options:
        return datetime.now(UTC) - timedelta(seconds=int(options["sinceSeconds"]))
    return None


def _go_to_last(file: BinaryIO, lines: int) -> None:
    """Seek to the start of the last lines; reads blocks from the end."""
    at = file.seek(0, os.SEEK_END)
    if not lines:
        return
    missing = lines + 1  # with the break before the first of them
    while at > 0:
        begin = max(at - _BLOCK, 0)
        file.seek(begin)
        block = file.read(at - begin)
        breaks = block.count(b"\n")
        if breaks >= missing:
            place = len(block)
            for _ in range(missing):
                place = block.rindex(b"\n", 0, place)
            file.seek(begin + place + 1)
            return
        missing -= breaks
        at = begin
    file.seek(0)
