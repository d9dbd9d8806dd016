"""Local logs: by last lines, by time, and while they grow."""

import asyncio
from pathlib import Path

import pytest
from ddp_client.sdk.backends import log_files
from ddp_client.sdk.backends.log_files import LogFiles
from ddp_operator.ports import Key

POD = Key("default", "job-0-0")


async def read(lines: LogFiles, **options: str) -> list[str]:
    pieces = lines.read(POD, options, idle_seconds=5, ended=lambda: True)
    text = b"".join([piece async for piece in pieces]).decode()
    return [line.split(" ", 1)[1] for line in text.splitlines()]


@pytest.fixture
def lines(tmp_path: Path) -> LogFiles:
    return LogFiles(lambda pod: tmp_path / pod.name)


@pytest.mark.parametrize("block", [2, 7, 64, 1 << 16])
@pytest.mark.parametrize("tail", [0, 1, 2, 9, 10, 11])
async def test_the_last_lines(
    lines: LogFiles, monkeypatch: pytest.MonkeyPatch, block: int, tail: int
) -> None:
    monkeypatch.setattr(log_files, "_BLOCK", block)
    said = [f"line {number}" for number in range(10)]
    for line in said:
        lines.add(POD, line)
    assert await read(lines, tailLines=str(tail)) == (said[-tail:] if tail else [])


async def test_since(lines: LogFiles) -> None:
    lines.add(POD, "one")
    lines.add(POD, "two")
    assert await read(lines, sinceSeconds="60") == ["one", "two"]
    assert await read(lines, sinceTime="2100-01-01T00:00:00Z") == []
    pieces = lines.read(POD, {}, idle_seconds=5, ended=lambda: True)
    second = b"".join([piece async for piece in pieces]).splitlines()[1].split()[0].decode()
    assert await read(lines, sinceTime=second) == ["two"]


async def test_a_pod_that_has_printed_nothing(lines: LogFiles) -> None:
    assert await read(lines, follow="true") == []


async def test_following_until_the_pod_has_ended(lines: LogFiles) -> None:
    lines.add(POD, "before")
    over = False
    pieces = lines.read(POD, {"follow": "true"}, idle_seconds=60, ended=lambda: over)
    assert (await anext(pieces)).endswith(b" before\n")
    waiting = asyncio.ensure_future(anext(pieces))
    lines.add(POD, "after")
    assert (await waiting).endswith(b" after\n")
    lines.add(POD, "last")
    over = True
    lines.wake()
    assert [piece.split()[1] async for piece in pieces] == [b"last"]


async def test_silence_ends_following(lines: LogFiles) -> None:
    lines.add(POD, "before")
    pieces = lines.read(POD, {"follow": "true"}, idle_seconds=0.01, ended=lambda: False)
    assert len([piece async for piece in pieces]) == 1


async def test_failed_write_loses_only_the_lines(tmp_path: Path) -> None:
    lines = LogFiles(lambda pod: tmp_path / "missing" / pod.name)
    lines.add(POD, "lost")
    assert await read(lines) == []
