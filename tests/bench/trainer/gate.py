"""What the gate between backward and the optimizer's step costs, on a device that is told its work.

A stand-in for the device comes to the end of a step at a set time by the machine's own clock. Shown
is by how much later the gate lets the host go on, for which a device would idle, and what of a core
it takes to look. On a CPU, where nothing is queued, it looks at no event at all.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from statistics import median

from ddp_trainer.devices.gate import Gate

from tests.bench.benchmark import Outcome, Settings, spread

STEPS_MILLISECONDS = (1, 10, 100)
AIM_OF_A_STEP, AIM_MILLISECONDS = 0.01, 100
_SECONDS = 2.0
"""Of steps of each length, in each repetition."""
_AT_ONCE = 10_000


@dataclass(frozen=True)
class Wait:
    """Of one step."""

    late_microseconds: float
    """From the end of the device's work to the gate's word."""
    core_microseconds: float
    """Of the processor's time."""


class _Due:
    """An event that comes at a set time."""

    def __init__(self, at: float) -> None:
        self._at = at

    def query(self) -> bool:
        return time.monotonic() >= self._at


def measure(settings: Settings) -> Outcome:
    """Wait for steps of each length."""
    found: dict[int, list[Wait]] = {milliseconds: [] for milliseconds in STEPS_MILLISECONDS}
    passes: dict[str, list[float]] = {"that has come": [], "on a CPU": []}
    for _ in range(settings.repeat):
        for milliseconds, waits in found.items():
            steps = round(_SECONDS * 1000 / milliseconds)
            waits += [_wait(milliseconds / 1000) for _ in range(steps)]
        passes["that has come"].append(_pass(Gate(lambda: _Due(0.0), _whole, timeout_seconds=60)))
        passes["on a CPU"].append(_pass(Gate(None, _whole, timeout_seconds=60)))
    late = median(wait.late_microseconds for wait in found[AIM_MILLISECONDS])
    limit = AIM_OF_A_STEP * AIM_MILLISECONDS * 1000
    lines = [
        "device       none: a stand-in that comes at a set time; no GPU was asked",
        f"repetitions  {settings.repeat}, each of {_SECONDS:g} s of steps of each length",
        "             shown: median (min-max)",
        "",
        f"{'a step of':16}{'late, µs':>24}{'of a core, µs':>24}{'of a step':>12}",
        *(_row(milliseconds, waits) for milliseconds, waits in found.items()),
        *(f"{f'a step {name}':26}{spread(took, 2):>14}  µs" for name, took in passes.items()),
        "",
        f"aim: late by at most {AIM_OF_A_STEP:.0%} of a step of {AIM_MILLISECONDS} ms "
        f"{'met' if late <= limit else 'MISSED'}",
    ]
    data = {str(milliseconds): [asdict(w) for w in waits] for milliseconds, waits in found.items()}
    return Outcome("\n".join(lines), {"waits": data, "passes": passes})


def _wait(seconds: float) -> Wait:
    due = time.monotonic() + seconds
    gate = Gate(lambda: _Due(due), _whole, timeout_seconds=60)
    core = time.thread_time()
    gate.wait()
    return Wait((time.monotonic() - due) * 1e6, (time.thread_time() - core) * 1e6)


def _pass(gate: Gate) -> float:
    began = time.perf_counter()
    for _ in range(_AT_ONCE):
        gate.wait()
    return (time.perf_counter() - began) / _AT_ONCE * 1e6


def _whole() -> None:
    """No group has broken."""


def _row(milliseconds: int, waits: list[Wait]) -> str:
    late = [wait.late_microseconds for wait in waits]
    cores = [wait.core_microseconds for wait in waits]
    share = median(late) / (milliseconds * 1000)
    return f"{f'{milliseconds} ms':16}{spread(late, 0):>24}{spread(cores, 0):>24}{share:>12.2%}"
