"""Tests of the members of a group and their node ranks."""

from dataclasses import replace

import pytest
from ddp_operator.api.status.world import World
from ddp_operator.job.membership.world import members, node_ranks

from tests.unit.job.builders import fresh_job


@pytest.mark.parametrize("recorded", [None, "0-2", "2,0-1", "0,3,1", "0-1", "broken"])
def test_members_have_the_node_rank_of_their_position(recorded: str | None) -> None:
    world = None if recorded is None else World(members=recorded)
    job = fresh_job(replicas=3)
    job = replace(job, status=job.status.model_copy(update={"world": world}))
    assert node_ranks(job) == {slot: rank for rank, slot in enumerate(members(job))}
