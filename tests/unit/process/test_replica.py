"""What a replica waits for before it acts."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ddp_operator.api.node_signals import DEFAULT_RULES
from ddp_operator.api.schema.comparison import Difference
from ddp_operator.kube import ApiClient
from ddp_operator.process.replica import Replica

from tests.unit.engine.fakes import SETTINGS


def replica(*, may_see_nodes: bool) -> Replica:
    return Replica(
        cast(ApiClient, SimpleNamespace(errors={})),
        namespace=None,
        settings=SETTINGS,
        lease=None,
        ready=asyncio.Event(),
        may_see_nodes=may_see_nodes,
        node_rules=DEFAULT_RULES,
    )


@pytest.mark.parametrize("may_see_nodes", [True, False])
async def test_replica_acts_once_pods_and_nodes_are_listed(*, may_see_nodes: bool) -> None:
    """A job with a topology that is planned without the nodes keeps ranks in no order."""
    acting: Any = replica(may_see_nodes=may_see_nodes)
    listed: dict[str, asyncio.Event] = {}
    for name in ("_pods", "_nodes") if may_see_nodes else ("_pods",):
        event = listed[name] = asyncio.Event()

        async def wait_synced(*, timeout_seconds: float, event: asyncio.Event = event) -> None:
            assert timeout_seconds > 0
            await event.wait()

        setattr(acting, name, SimpleNamespace(wait_synced=wait_synced))
    synced = asyncio.create_task(acting._wait_synced())
    for event in reversed(listed.values()):
        await asyncio.sleep(0.01)
        assert not synced.done()
        event.set()
    await synced


async def test_replica_that_waits_for_its_crd_shows_the_lost_fields() -> None:
    waiting = replica(may_see_nodes=False)
    waiting.note_crd(Difference(lacking=frozenset({"status.world", "status.failures[].class"})))
    lines = waiting.metrics().splitlines()
    assert "ddp_operator_crd_lost_fields 2" in lines
    assert "ddp_operator_leader 0" in lines
