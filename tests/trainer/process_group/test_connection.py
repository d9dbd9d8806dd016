"""The first contact of a group's ranks: its time limit depends on their number."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
from ddp_trainer.process_group.connection import Connection
from ddp_trainer.process_group.rendezvous.membership import Membership
from ddp_trainer.process_group.sockets import Connections
from ddp_trainer.settings.timeouts import contact_seconds
from ddp_trainer.system.watchdog import Watchdog
from torch import distributed as dist
from torch._C._distributed_c10d import HashStore


@pytest.mark.parametrize("size", [2, 512])
def test_time_limit_of_torch_grows_with_the_ranks(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NotFormedError(Exception):
        pass

    waits: list[timedelta] = []

    def form(*_: object, timeout: timedelta, **options: Any) -> None:
        waits.extend((timeout, options["store"].timeout))
        raise NotFormedError

    monkeypatch.setattr(dist, "init_process_group", form)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    membership = Membership(
        root=HashStore(),
        address="127.0.0.1",
        store_address="127.0.0.1",
        port=1,
        name="group",
        connections=Connections(1),
        rank=0,
        size=size,
        number=1,
        newcomers=0,
    )
    connection = Connection(membership, torch.device("cpu"), None, Watchdog(lambda _: None))
    with pytest.raises(NotFormedError):
        connection.open(timedelta(minutes=10))
    expected = timedelta(seconds=contact_seconds(size))
    assert [abs(wait - expected) < timedelta(seconds=1) for wait in waits] == [True, True]
