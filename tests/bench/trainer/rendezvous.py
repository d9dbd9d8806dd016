"""How large groups meet: what it asks of rank 0, how long it takes, and how soon a loss is known.

See `rendezvous_members` for what takes part, and what does not.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from statistics import mean
from typing import Any

from tests.bench.benchmark import BenchmarkError, Outcome, Settings, spread
from tests.bench.scripts.rendezvous_members import HEARTBEAT_SECONDS
from tests.ports import free_port

SIZES = (128, 1024)
WAIT_SECONDS = 20.0
"""For which all members but one wait."""
_WATCH_SECONDS = 5.0
"""For all to begin to watch each other, before one freezes."""
_DEADLINE_SECONDS = 300.0

_ASKS_NOBODY = """
echo 'hosts: files' > "$0"
mount --bind "$0" /etc/nsswitch.conf
exec "$@"
"""
"""torch's store asks for the name of each client, one after the other. Where DNS answers, that
takes no time; here DNS may be silent, and nobody should wait for it."""

Line = dict[str, Any]


@dataclass(frozen=True)
class GroupFormer:
    """One group."""

    requests_a_second: float
    """Of a member that waits."""
    to_meet: float
    """Seconds from the last member's start until all know of each other."""
    to_meet_again: float
    """Seconds from the moment when all are to meet again until they have."""
    cpu_again: float
    """Seconds of CPU that rank 0 takes for that."""
    to_notice: float
    """Seconds from a member's standstill until all others know."""


def measure(settings: Settings) -> Outcome:
    """Let groups meet."""
    names = settings.scratch / "nsswitch.conf"
    found = {size: [_meet(size, names) for _ in range(settings.repeat)] for size in SIZES}
    rows = {
        "requests of a waiting member, 1/s": "requests_a_second",
        "the last one comes: all have met, s": "to_meet",
        "all meet again, s": "to_meet_again",
        "... of rank 0's CPU, s": "cpu_again",
        "one stands still: all notice, s": "to_notice",
    }
    lines = [
        "members      processes of this machine: the trainer's store and code, no torch group",
        "names        from /etc/hosts alone: no DNS to wait for",
        f"waiting      {WAIT_SECONDS:g} s for the last one; lost after {HEARTBEAT_SECONDS:g} s",
        f"repetitions  {settings.repeat}; shown: median (min-max)",
        "",
        f"{'members':36}" + "".join(f"{size:>22}" for size in SIZES),
        *(
            f"{title:36}"
            + "".join(f"{spread([getattr(one, field) for one in found[n]], 2):>22}" for n in SIZES)
            for title, field in rows.items()
        ),
    ]
    return Outcome("\n".join(lines), found)


def _meet(size: int, names: Path) -> GroupFormer:
    pipes = [os.pipe() for _ in range(3)]
    readers, (last, again, watch) = [one[0] for one in pipes], [one[1] for one in pipes]
    command = [sys.executable, "-m", "tests.bench.scripts.rendezvous_members", str(size)]
    process = subprocess.Popen(
        [
            *("unshare", "--mount", "sh", "-c", _ASKS_NOBODY, str(names)),
            *(*command, str(free_port()), *map(str, readers)),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=readers,
    )
    try:
        lines: Queue[Line] = Queue()
        threading.Thread(target=_read, args=(process, lines), daemon=True).start()
        _collect(lines, "begun", size)
        time.sleep(WAIT_SECONDS)
        began = time.monotonic()
        os.write(last, b".")
        met = _collect(lines, "met", size)
        waited = [one for one in met if 0 < one["rank"] < size - 1]
        began_again = time.monotonic()
        os.write(again, b"." * size)
        met_again = _collect(lines, "met again", size)
        [host] = [one for one in met_again if one["rank"] == 0]
        os.write(watch, b"." * size)
        time.sleep(_WATCH_SECONDS)
        [victim] = [one["pid"] for one in met if one["rank"] == size // 2]
        frozen = time.monotonic()
        os.kill(victim, signal.SIGSTOP)
        told = _collect(lines, "told", size - 1)
    finally:
        process.kill()  # and the kernel kills the members
        process.wait()
        for fd in (*readers, last, again, watch):
            os.close(fd)
    return GroupFormer(
        requests_a_second=mean(one["requests"] / one["seconds"] for one in waited),
        to_meet=max(one["time"] for one in met) - began,
        to_meet_again=max(one["time"] for one in met_again) - began_again,
        cpu_again=host["cpu"],
        to_notice=max(one["time"] for one in told) - frozen,
    )


def _read(process: subprocess.Popen[bytes], lines: Queue[Line]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(b"{"):
            lines.put(json.loads(line))


def _collect(lines: Queue[Line], event: str, count: int) -> list[Line]:
    until = time.monotonic() + _DEADLINE_SECONDS
    found: list[Line] = []
    while len(found) < count:
        try:
            line = lines.get(timeout=until - time.monotonic())
        except (Empty, ValueError):
            raise BenchmarkError(f"{len(found)} of {count} members have {event} in time") from None
        if line["event"] != event:
            raise BenchmarkError(
                f"rank {line['rank']} has {line['event']}, before all have {event}"
            )
        found.append(line)
    if len({one.get("group") for one in found}) != 1:
        raise BenchmarkError("members are in different groups")
    return found
