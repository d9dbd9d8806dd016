"""Runs that tests disturb, on a CPU or a device with a stream, and what they have to end like."""

from __future__ import annotations

from collections.abc import Callable

from tests.trainer.support.pods import Job, Pod, assert_same

LAST_STEP = {2: 92, 3: 60, 4: 48}  # 4 epochs of ceil(ceil(1438 / ranks) / 32) steps

Undisturbed = Callable[[int, str], Job]
"""A run of so many ranks, forked by one of the forkservers, that nothing has happened to."""


def flags(of: Job) -> list[str]:
    """Of a run with running statistics, several buckets and a save every few steps."""
    return [
        *("--workload", "tests.trainer.support.norm:load", "--bucket-cap-mb", "0.01"),
        *("--epochs", "4", "--checkpoint-every-steps", "3", "--trace-samples", str(of.traces)),
        *("--max-restarts", "1000", "--heartbeat-timeout-seconds", "5"),
    ]


def run_to_its_end(wounded: Job, *more: str) -> Pod:
    """The one pod of a job, which ends well."""
    [pod] = wounded.start_all(*flags(wounded), *more)
    assert pod.wait() == 0, pod.log
    return pod


def assert_same_run(actual: Job, expected: Job) -> None:
    """The same state at the end, to the bit, of the same samples."""
    ranks = expected.local_world_size
    assert_same(actual.state(LAST_STEP[ranks]), expected.state(LAST_STEP[ranks]))
    for rank in range(ranks):
        assert actual.steps_of(rank) == expected.steps_of(rank)
