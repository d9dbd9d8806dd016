"""A thousand ranks: how long they take to meet and to hear of a loss, and what the store is asked.

The trainer's own rendezvous and heartbeat over torch's store, each rank a thread in one of a few
processes on this machine; without process groups, which are torch's. See `members`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.bench.benchmark import BenchmarkError, Outcome, Settings, spread
from tests.ports import free_port

SIZES = (64, 1024)
_PROCESSES = 4
_REST_SECONDS = 5.0
_SETTLE_SECONDS = 2.0

Figures = dict[str, float]


class Members:
    """Processes that hold the ranks of one job."""

    def __init__(self, size: int, folder: Path) -> None:
        port, each = free_port(), size // _PROCESSES
        self.size = size
        self._logs = [folder / f"members-{size}-{number}.log" for number in range(_PROCESSES)]
        self._processes = []
        for number, log in enumerate(self._logs):
            place = (port, size, number * each, (number + 1) * each - 1)
            with log.open("wb") as output:
                self._processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "tests.bench.members", *map(str, place)],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=output,
                    )
                )
        self._answers(range(_PROCESSES))

    def ask(self, command: str, *, of: int | None = None) -> list[dict[str, float]]:
        """What all of them answer, or one of them."""
        asked = range(_PROCESSES) if of is None else [of]
        for number in asked:
            stdin = self._processes[number].stdin
            assert stdin is not None
            stdin.write(f"{command}\n".encode())
            stdin.flush()
        return self._answers(asked)

    def requests(self) -> float:
        """To the store, so far."""
        return sum(answer["count"] for answer in self.ask("requests"))

    def requests_a_second(self) -> float:
        """Of each rank, while nothing happens."""
        time.sleep(_SETTLE_SECONDS)
        before, began = self.requests(), time.monotonic()
        time.sleep(_REST_SECONDS)
        return (self.requests() - before) / (time.monotonic() - began) / self.size

    def close(self) -> None:
        """End them all."""
        for process in self._processes:
            process.kill()
            process.wait()

    def _answers(self, asked: Sequence[int]) -> list[dict[str, float]]:
        answers = []
        for number in asked:
            stdout = self._processes[number].stdout
            assert stdout is not None
            line = stdout.readline()
            if not line:
                raise BenchmarkError(f"ranks ended: {self._logs[number].read_text()[-1000:]}")
            answers.append(json.loads(line))
        return answers


@contextmanager
def _members(size: int, folder: Path) -> Iterator[Members]:
    members = Members(size, folder)
    try:
        yield members
    finally:
        members.close()


def measure(settings: Settings) -> Outcome:
    """Let ranks meet, wait, lose one, and meet again."""
    found: dict[int, list[Figures]] = {size: [] for size in SIZES}
    for _ in range(settings.repeat):
        for size in SIZES:
            with _members(size, settings.scratch) as members:
                found[size].append(_figures(members))
    rows = [
        ("formed after the last rank came, s", "formed"),
        ("loss heard by all after a successor came, s", "noticed"),
        ("formed again after that, s", "formed again"),
        ("requests a rank: to form", "to form"),
        ("requests a rank and second: waiting for one", "waiting"),
        ("requests a rank and second: training", "training"),
    ]
    lines = [
        f"ranks        threads of {_PROCESSES} processes on this machine; heartbeat of 10 s",
        f"repetitions  {settings.repeat}; shown: median (min-max)",
        "",
        f"{'':44}" + "".join(f"{f'{size} ranks':>18}" for size in SIZES),
        *(
            f"{title:44}"
            + "".join(f"{spread([f[key] for f in found[size]], 2):>18}" for size in SIZES)
            for title, key in rows
        ),
    ]
    data: dict[str, Any] = {str(size): figures for size, figures in found.items()}
    return Outcome("\n".join(lines), data)


def _figures(members: Members) -> Figures:
    last = members.size - 1
    members.ask(f"meet {last}")
    waiting = members.requests_a_second()
    before = members.requests()
    [came] = members.ask(f"come {last}", of=_PROCESSES - 1)
    formed = _last(members.ask("met"))
    to_form = (members.requests() - before) / members.size
    members.ask("beat")
    training = members.requests_a_second()
    [successor] = members.ask(f"come {last}", of=_PROCESSES - 1)
    noticed = _last(members.ask(f"lost {last}"))
    members.ask(f"meet {last}")
    again = _last(members.ask("met"))
    return {
        "waiting": waiting,
        "formed": formed - came["at"],
        "to form": to_form,
        "training": training,
        "noticed": noticed - successor["at"],
        "formed again": again - noticed,
    }


def _last(answers: list[dict[str, float]]) -> float:
    return max(answer["at"] for answer in answers)
