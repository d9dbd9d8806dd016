"""Bits flip in the memory of ranks; the right rank is named, and no result changes."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from ddp_trainer.exit_codes import ExitCode
from ddp_trainer.library.checks.replicas import Replica, faulty, in_words, step_to_return_to
from ddp_trainer.run import fingerprint
from ddp_trainer.run.fingerprint import sum_of_bits
from ddp_trainer.system.buffers import tensors
from torch import Tensor, nn

from tests.trainer.library.checks.flipping import EVERY_STEPS, FOLDER, LEAVE_AT, PLAN, flip
from tests.trainer.library.runs import run_to_its_end, script_job

FLIPS = 300
STEPS = 60


class Trained:
    """A replica that takes the same steps as its equals."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 3).to(torch.bfloat16))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=False)

    def step(self, seed: int) -> None:
        torch.manual_seed(seed)
        for parameter in self.model.parameters():
            parameter.grad = torch.randn_like(parameter)
        self.optimizer.step()

    def stored(self) -> list[Tensor]:
        return [*self.model.parameters(), *tensors(list(self.optimizer.state.values()))]

    def replica(self) -> Replica:
        return Replica(sum_of_bits(self.stored()), 0, is_own=True)


def test_each_flip_is_found_at_the_right_rank() -> None:
    trained = Trained()
    for seed in range(3):
        trained.step(seed)
    ranks = [copy.deepcopy(trained) for _ in range(4)]
    drawn = random.Random(1)
    for _ in range(FLIPS):
        rank = drawn.randrange(len(ranks))
        tensor = drawn.choice(ranks[rank].stored())
        bit = drawn.randrange(8 * tensor.nbytes)
        flip(tensor, bit)
        assert faulty([each.replica() for each in ranks]) == [rank]
        flip(tensor, bit)
    assert faulty([each.replica() for each in ranks]) == []


def test_a_flip_is_found_after_more_steps_and_no_other_is_reported() -> None:
    ranks = [Trained() for _ in range(3)]
    drawn = random.Random(2)
    found = flipped = 0
    for step in range(STEPS):
        for each in ranks:
            each.step(step)
        prints = [each.replica() for each in ranks]
        assert faulty(prints) == []
        assert len(set(prints)) == 1
        if step % 2:
            continue
        rank = drawn.randrange(len(ranks))
        disturbed = [copy.deepcopy(each) for each in ranks]
        tensor = drawn.choice([each for each in disturbed[rank].stored() if each.ndim])
        flip(tensor, drawn.randrange(8 * tensor.nbytes))
        for later in range(step + 1, step + 1 + drawn.randrange(1, 5)):
            for each in disturbed:
                each.step(later)
        named = faulty([each.replica() for each in disturbed])
        assert named in ([], [rank])
        found, flipped = found + len(named), flipped + 1
    # The rest are of the least bits of averages of gradients, which later steps round away.
    assert found >= 0.99 * flipped


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.uint8, torch.bool])
@pytest.mark.parametrize("size", [0, 1, 7, 9, 70_001])
def test_the_sum_covers_tensors_of_any_kind_and_size(kind: torch.dtype, size: int) -> None:
    whole = torch.zeros(size + 1, dtype=kind)
    for tensor in (whole[:size], whole[1:]):  # the latter is not aligned
        before = sum_of_bits([tensor])
        for place in {0, size // 2, size - 1} if size else ():
            tensor[place] = 1
            assert sum_of_bits([tensor]) != before
            tensor[place] = 0
        assert sum_of_bits([tensor]) == before
    assert sum_of_bits([]) == 0


def test_many_small_tensors_are_summed_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    some = list(torch.randn(40, 4).unbind())
    expected = sum_of_bits(some)
    monkeypatch.setattr(fingerprint, "_BATCH_BYTES", 5 * some[0].nbytes)
    assert sum_of_bits(some) == expected
    flip(some[17], 3)
    assert sum_of_bits(some) != expected


@pytest.mark.parametrize(
    ("prints", "named"),
    [
        ([5, 5, 5], []),
        ([5, 6, 5], [1]),
        ([5, 6], []),
        ([5, 6, 7], []),
        ([5, 6, 5, 6], []),
        ([5, 6, 5, 7, 5], [1, 3]),
    ],
)
def test_the_minority_is_named(prints: Sequence[int], named: Sequence[int]) -> None:
    assert faulty([Replica(each, 3, is_own=True) for each in prints]) == named


def test_a_rank_that_received_the_state_confirms_nothing() -> None:
    """It may have received the faulty one."""
    replicas = [Replica(5, 3, True), Replica(5, None, False), Replica(6, 3, True)]
    assert faulty(replicas) == []
    assert step_to_return_to(replicas, without=()) == 3


def test_ranks_return_only_to_a_step_of_all() -> None:
    replicas = [Replica(5, 3, True), Replica(5, None, True), Replica(6, 4, True)]
    assert step_to_return_to(replicas, without=[2]) == 3
    assert step_to_return_to(replicas, without=[]) is None
    assert step_to_return_to(replicas[1:2], without=[]) is None


def test_messages_name_ranks_and_steps() -> None:
    assert in_words([2], 40, 30) == (
        "rank 2 differs from the other ranks after step 40; last equal at step 30: "
        "flipped bits in memory"
    )
    assert in_words([], 40, None) == (
        "the ranks differ after step 40, and most do not agree on one state; never equal: "
        "flipped bits in memory"
    )
    assert len(in_words(range(100_000, 100_100), 10**9, 10**9)) < 200


# With processes.

Flips = list[tuple[int, int, str]]
Ends = Callable[[int], list[str]]
FLAGS = ("--epochs", "2")


def variables(folder: Path, flips: Flips, *, every: int) -> dict[str, str]:
    return {EVERY_STEPS: str(every), PLAN: json.dumps(flips), FOLDER: str(folder)}


def ends_of(*logs: str) -> list[str]:
    return sorted(end for log in logs for end in re.findall(r"rank \d ends with \w+", log))


def test_ranks_with_flipped_bits_end_and_the_others_return(tmp_path: Path, ends: Ends) -> None:
    """The second one is found in the second epoch, in which its pod has been replaced."""
    flips: Flips = [(1, 13, "parameter"), (2, 17, "state")]
    more = variables(tmp_path, flips, every=5)
    with script_job(tmp_path, ranks=3, nodes=3, script="flips", variables=more) as job:
        others = job.start_all(*FLAGS)
        for rank, step in ((1, 15), (2, 20)):
            failed = others.pop(1)
            assert failed.wait() == ExitCode.FLIPPED_BITS, failed.log
            assert failed.message["rank"] == rank
            assert re.fullmatch(
                rf"rank {rank} differs from the other ranks after step {step}; "
                r"last equal at step \d+: flipped bits in memory",
                failed.message["error"],
            )
            others.append(job.start(rank, *FLAGS))
        for pod in others:
            assert pod.wait() == 0, pod.log
            assert "restarting it" not in pod.log
        assert "returning from step 15 to step" in job.pods[0].log
        assert "returning from step 20 to step" in job.pods[0].log
        assert ends_of(*(pod.log for pod in job.pods)) == ends(3)


@pytest.mark.nightly
def test_two_ranks_both_return_twice_to_the_same_copy(tmp_path: Path, ends: Ends) -> None:
    more = variables(tmp_path, [(1, 12, "parameter"), (1, 11, "state")], every=5)
    with script_job(tmp_path, ranks=2, script="flips", variables=more) as job:
        log = run_to_its_end(job, *FLAGS).log
    assert "restarting it" not in log
    found = "the ranks differ after step 15, and most do not agree on one state"
    assert len(re.findall(rf"{found}.*; returning from step 15 to step", log)) == 4
    assert ends_of(log) == ends(2)


@pytest.mark.nightly
def test_a_rank_that_received_the_faulty_state_does_not_vote(tmp_path: Path, ends: Ends) -> None:
    """Rank 2 dies after the flip, and rank 0 sends its faulty state to its successor."""
    more = variables(tmp_path, [(0, 12, "parameter"), (2, 13, "death")], every=5)
    with script_job(tmp_path, ranks=3, script="flips", variables=more) as job:
        log = run_to_its_end(job, *FLAGS).log
    assert log.count("restarting it") == 1
    found = "the ranks differ after step 13, and most do not agree on one state"
    assert len(re.findall(rf"{found}.*; returning from step 13 to step", log)) == 3
    assert ends_of(log) == ends(3)


@pytest.mark.nightly
def test_all_ranks_restart_if_the_script_cannot_repeat_steps(tmp_path: Path) -> None:
    """It has left its loop after the step in which a bit flips."""
    more = {**variables(tmp_path, [(1, 12, "state")], every=5), LEAVE_AT: "12"}
    with script_job(tmp_path, ranks=3, nodes=3, script="flips", variables=more) as job:
        pods = job.start_all(*FLAGS)
        codes = [pod.wait() for pod in pods]
    assert codes == [ExitCode.LOST_PEER, ExitCode.FLIPPED_BITS, ExitCode.LOST_PEER]
    for pod in (pods[0], pods[2]):
        assert pod.message["error"].startswith("rank 1 differs from the other ranks after step 12;")
        assert pod.message["error"].endswith("; restarting from the newest checkpoint")
