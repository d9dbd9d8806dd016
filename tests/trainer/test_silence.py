"""Who stands still, and who only seems to because the watcher itself did."""

from __future__ import annotations

from ddp_trainer.silence import Silence


def test_only_a_counter_that_stands_still_for_longer_than_the_timeout_is_silent() -> None:
    silence = Silence(timeout_seconds=10, now=0)
    for second in range(0, 11, 2):
        assert silence.look({0: second, 1: 7}, now=second) == []
    assert silence.look({0: 12, 1: 7}, now=12) == [1]
    assert silence.look({0: 13, 1: 8}, now=13) == []


def test_a_watcher_that_was_frozen_itself_blames_nobody() -> None:
    silence = Silence(timeout_seconds=10, now=0)
    assert silence.look({0: 1}, now=1) == []
    assert silence.look({0: 1}, now=60) == []
    for second in range(62, 71, 2):
        assert silence.look({0: 1}, now=second) == []
    assert silence.look({0: 1}, now=72) == [0]
