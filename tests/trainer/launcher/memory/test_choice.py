"""The snapshots that a group resumes from."""

from __future__ import annotations

import pytest
from ddp_trainer.launcher.memory.choice import Choice, choose
from ddp_trainer.memory.volume import SnapshotName
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.launcher.memory.files import snapshot as name


def chosen(*pods: list[SnapshotName], world_size: int = 2, silent: tuple[int, ...] = ()) -> Choice:
    return choose(dict(enumerate(pods)), world_size=world_size, generation=3, silent=silent)


@pytest.mark.parametrize(
    ("pods", "silent", "reason"),
    [
        ([[], []], (), "no pod has a snapshot"),
        ([[]], (1,), "no pod has a snapshot; no answer from node ranks 1"),
        (
            [[name(10, 0)], []],
            (),
            "step 10, the newest, has no snapshot of ranks 1",
        ),
        (
            [[name(10, rank, world_size=9) for rank in range(9)]],
            (),
            "the snapshots of step 10 are of 9 ranks, not 2",
        ),
        ([], range(9), "no pod has a snapshot; no answer from node ranks 0, 1, 2, 3 and 5 more"),
    ],
)
def test_reason_names_what_is_missing(
    pods: list[list[SnapshotName]], silent: tuple[int, ...], reason: str
) -> None:
    assert chosen(*pods, silent=silent) == Choice(reason=reason)


names = st.builds(
    name,
    st.integers(1, 3),
    st.integers(0, 1),
    generation=st.integers(1, 3),
    world_size=st.integers(2, 3),
    replicated=st.booleans(),
)


@given(st.lists(st.lists(names, max_size=6), max_size=4))
def test_choice_has_one_step_and_kind_and_is_the_newest(
    pods: list[list[SnapshotName]],
) -> None:
    choice = chosen(*pods)
    assert (choice.key is None) == bool(choice.reason)
    assert choice.key is None or choice.key.generation < 3, "too new"
    everything = {one for pod in pods for one in pod if one.key.generation < 3}
    for one in everything:
        of_step = {other for other in everything if other.key == one.key}
        whole = {name.rank for name in of_step if not name.replicated and name.world_size == 2}
        if any(other.replicated for other in of_step) or whole == {0, 1}:
            assert choice.key is not None
            assert choice.key >= one.key
    assert len({(one.key, one.replicated, one.world_size) for one in choice.holders}) <= 1
    if choice.holders and not next(iter(choice.holders)).replicated:
        assert {one.rank for one in choice.holders} == {0, 1}
    for one, node_ranks in choice.holders.items():
        assert all(one in pods[node_rank] for node_rank in node_ranks)
