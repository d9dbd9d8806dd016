"""Pods that are asked some at a time."""

import asyncio

import pytest
from ddp_client.remote.channels import AT_ONCE, each_of
from ddp_operator.job.pods.state import PodState

from tests.unit.job.builders import fresh_job, pod


async def test_first_error_ends_all_questions() -> None:
    pods = [pod(fresh_job(), index) for index in range(AT_ONCE + 2)]
    asked: list[str] = []
    given_up: list[str] = []

    async def ask(one: PodState) -> None:
        if one is pods[AT_ONCE - 1]:
            raise ValueError("no answer")
        asked.append(one.key.name)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            given_up.append(one.key.name)
            raise

    with pytest.raises(ValueError, match="no answer"):
        await each_of(pods, ask)
    assert len(asked) >= AT_ONCE - 1
    assert sorted(given_up) == sorted(asked)
