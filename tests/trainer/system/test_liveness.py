"""Processes that stand still, and a watcher that stood still itself."""

from __future__ import annotations

from ddp_trainer.system.activity import Activity
from ddp_trainer.system.liveness import FrozenWatch, Silence


def test_counter_without_change_beyond_the_timeout_is_silent() -> None:
    silence = Silence(timeout_seconds=10, now=0)
    for second in range(0, 11, 2):
        assert silence.look({0: second, 1: 7}, now=second) == []
    assert silence.look({0: 12, 1: 7}, now=12) == [1]
    assert silence.look({0: 13, 1: 8}, now=13) == []


def test_watcher_that_was_frozen_reports_nobody() -> None:
    silence = Silence(timeout_seconds=10, now=0)
    assert silence.look({0: 1}, now=1) == []
    assert silence.look({0: 1}, now=60) == []
    for second in range(62, 71, 2):
        assert silence.look({0: 1}, now=second) == []
    assert silence.look({0: 1}, now=72) == [0]


class Process:
    """A process as the watch of a launcher sees it, once a second."""

    def __init__(self, *, timeout_seconds: float = 10, longest_seconds: float = 60) -> None:
        self._watch = FrozenWatch(
            timeout_seconds=timeout_seconds, longest_seconds=longest_seconds, now=0
        )
        self._now = 0
        self._pulse = 0
        self._activity = Activity(cpu_seconds=0, waits_for_disk=False)

    def lives(
        self,
        seconds: int,
        *,
        pulse: bool = False,
        cores: float = 0,
        waits_for_disk: bool = False,
    ) -> list[tuple[int, bool]]:
        """Return the seconds after which it is frozen, and if it had computed until then."""
        found = []
        for second in range(1, seconds + 1):
            self._now += 1
            self._pulse += pulse
            self._activity = Activity(
                cpu_seconds=self._activity.cpu_seconds + cores, waits_for_disk=waits_for_disk
            )
            state = self._watch.look({7: self._pulse}, lambda _: self._activity, now=self._now)
            found += [(second, key in state.busy) for key in state.frozen]
            self.is_busy = state.busy == [7]
        return found


def test_a_process_with_a_pulse_may_do_nothing() -> None:
    assert Process().lives(1000, pulse=True) == []


def test_a_process_that_does_nothing_is_frozen() -> None:
    """Stopped, or waiting for itself; threads that wait for Python's lock cost a little time."""
    for cores in (0, 0.02):
        process = Process()
        process.lives(5, pulse=True, cores=1)
        assert process.lives(11, cores=cores) == [(11, False)]


def test_process_that_computes_without_a_pulse_has_more_time() -> None:
    for does in ({"cores": 0.2}, {"waits_for_disk": True}):
        process = Process()
        process.lives(5, pulse=True, cores=1)
        assert process.lives(60, **does) == []
        assert process.is_busy
        assert process.lives(1, **does) == [(1, True)]


def test_process_that_stops_computing_without_a_pulse_is_frozen() -> None:
    process = Process()
    process.lives(5, pulse=True)
    assert process.lives(30, cores=1) == []
    # A second later than others: it had worked in a part of the last time span looked at.
    assert process.lives(12) == [(12, False)]


def test_process_that_stops_soon_after_its_last_pulse_was_not_busy() -> None:
    process = Process()
    process.lives(5, pulse=True)
    assert process.lives(4, cores=1) == []
    for _ in range(10):
        assert process.lives(1) == []
        assert not process.is_busy
    assert process.lives(2) == [(2, False)]


def test_process_with_a_new_pulse_starts_again() -> None:
    process = Process()
    for _ in range(5):
        assert process.lives(50, cores=1) == []
        assert process.is_busy
        assert process.lives(1, pulse=True) == []
        assert not process.is_busy


def test_ended_process_is_frozen() -> None:
    watch = FrozenWatch(timeout_seconds=10, longest_seconds=60, now=0)
    for second in range(11):
        assert watch.look({7: 1}, lambda _: None, now=second).frozen == []
    assert watch.look({7: 1}, lambda _: None, now=11).frozen == [7]


def test_one_tick_of_cpu_time_is_no_work_at_any_rate_of_checks() -> None:
    watch = FrozenWatch(timeout_seconds=2, longest_seconds=24, now=0)

    def activity(_: int) -> Activity:
        return Activity(cpu_seconds=now // 250 * 0.01, waits_for_disk=False)  # 4 % of a core

    for now in range(0, 2010, 10):
        frozen = watch.look({7: 1}, activity, now=now / 1000).frozen
        assert frozen == ([7] if now > 2000 else [])
