"""Merge patches of a status."""

from datetime import UTC, datetime
from typing import Any

import pytest
from ddp_operator.api.status import Bookkeeping, Condition, DDPJobStatus, Goodput, Progress
from ddp_operator.api.status.world import World
from ddp_operator.api.values.merge_patch import merge_patch
from ddp_operator.engine.status_patch import (
    News,
    as_stored,
    forgotten,
    news,
    status_patch,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.mergepatch import merged

values = st.recursive(
    st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.sampled_from("abcd"), values, max_size=4)


@given(old=objects, new=objects)
def test_patch_turns_old_into_new(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert merged(old, merge_patch(old, new)) == new


@given(old=objects)
def test_unchanged_object_needs_no_patch(old: dict[str, Any]) -> None:
    assert merge_patch(old, old) == {}


def test_true_is_not_one() -> None:
    assert merge_patch({"a": 1, "b": False}, {"a": True, "b": False}) == {"a": True}


def test_empty_strings_are_left_out_at_any_depth() -> None:
    failure = {"time": "2026-01-01T00:00:00Z", "attempt": 0, "index": 0, "pod": "a", "reason": "b"}
    failure |= {"class": "Application", "action": "RestartGang", "charged": True}
    stored = as_stored(DDPJobStatus.model_validate({"phase": "Failed", "failures": [failure]}))
    assert "ready" not in stored
    assert stored["phase"] == "Failed"
    assert stored["failures"] == [failure]


def test_changes_rank_as_progress_counts_or_state() -> None:
    status = DDPJobStatus()

    def changed(**fields: Any) -> News:
        return news(status, status.model_copy(update=fields))

    progress = Progress(step=3, updated_at=datetime.now(UTC))
    assert changed(progress=progress) == News.PROGRESS
    assert changed(progress=progress, ready_replicas=1) == News.COUNTS
    assert changed(ready_replicas=1, message="x") == News.COUNTS
    assert changed(restarts=1) == News.STATE
    assert changed(phase="Running", progress=progress) == News.STATE


def test_status_is_stored_with_zeros_and_without_empty_fields() -> None:
    condition = Condition(
        type="Running", status="True", reason="PodsReady", last_transition_time=datetime.now(UTC)
    )
    stored = as_stored(DDPJobStatus(conditions=(condition,)))
    assert stored["restarts"] == 0
    assert not {"ready", "reason", "failures", "replacements", "startTime"} & set(stored)
    assert "message" not in stored["conditions"][0]
    assert DDPJobStatus.model_validate(stored).conditions[0].message == ""


def test_fields_of_a_newer_operator_are_kept() -> None:
    novelty = {"node": "a"}
    old = {**as_stored(DDPJobStatus(reason="PodsStarting")), "novelty": novelty}
    patch = status_patch(old, as_stored(DDPJobStatus(phase="Running")))
    assert patch == {"phase": "Running", "reason": None}


@pytest.mark.parametrize(
    ("lost", "named"),
    [
        ({}, set()),
        ({"ready": ""}, set()),
        ({"goodput": None, "progress": None}, {"status.progress"}),
        ({"attempt": 0}, {"status.attempt"}),
        ({"world": World(generation=2)}, {"status.world.members"}),
        ({"world": None}, {"status.world"}),
        ({"bookkeeping": Bookkeeping()}, {"status.bookkeeping.replacements"}),
    ],
)
def test_decisive_fields_that_an_older_crd_drops_are_named(
    lost: dict[str, Any], named: set[str]
) -> None:
    now = datetime.now(UTC)
    decided = DDPJobStatus(
        attempt=1,
        world=World(generation=2, members="0-2"),
        progress=Progress(step=3, updated_at=now),
        goodput=Goodput(),
        ready="2/2",
    ).noting(replacements={"2": 1})
    assert forgotten(decided, decided.updated(**lost)) == named
