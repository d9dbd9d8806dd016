"""Frozen or quantised weights stay where they are, and are sent only where they differ."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
import torch
from ddp_trainer.collectives.group import Group
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.library.state_transfer import transfer_state
from ddp_trainer.run.fingerprint import by_hash, by_sum, fingerprint
from ddp_trainer.run.train_state import TrainState
from torch import Tensor, nn

from tests.trainer.support.quantised import Quantised

CPU = torch.device("cpu")
SIDE = 1024
"""Width of square matrices; those of floating-point numbers have 4 MiB."""


class Pair:
    """Two ranks of one group, in threads, and the bytes that one sends to the other."""

    def __init__(self) -> None:
        self.sent = 0
        self.barrier = threading.Barrier(2, timeout=60)
        self.given: list[Any] = [None, None]

    def exchange(self, rank: int, what: Any) -> list[Any]:
        self.given[rank] = what
        self.barrier.wait()
        both = list(self.given)
        self.barrier.wait()
        return both


class Rank:
    """The methods of a group that `transfer_state` needs."""

    size, device = 2, CPU

    def __init__(self, pair: Pair, rank: int) -> None:
        self.rank, self._pair = rank, pair
        self.gate = self

    def wait(self) -> None:
        """Act as a gate."""

    def sum(self, *values: float) -> list[float]:
        return [sum(each) for each in zip(*self._pair.exchange(self.rank, values), strict=True)]

    def broadcast(self, data: bytes | None, *, source: int) -> bytes:
        return cast(bytes, self._pair.exchange(self.rank, data)[source])

    def broadcast_tensors(self, *tensors: Tensor, source: int) -> None:
        for tensor in tensors:
            self.broadcast_tensor(tensor, source=source)

    def broadcast_tensor(self, tensor: Tensor, *, source: int) -> None:
        theirs = self._pair.exchange(self.rank, tensor.clone())[source]
        if self.rank == source:
            self._pair.sent += tensor.nbytes
        else:
            tensor.copy_(theirs)


def new_run(*, seed: int = 0) -> TrainState:
    model = Quantised(side=SIDE, seed=seed)
    optimizer = torch.optim.Adam(model.adapter.parameters())
    return TrainState({"model": model, "optimizer": optimizer}, seed=0, device=CPU)


def sent(giver: TrainState, taker: TrainState) -> int:
    """Transfer the state; return the number of bytes."""
    pair = Pair()

    def give(rank: int) -> int:
        group = cast(Group, Rank(pair, rank))
        return transfer_state((giver, taker)[rank], group, source=0, lacks_it=rank == 1)

    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(give, (0, 1))
    assert one == other == pair.sent
    return pair.sent


def assert_equal(one: TrainState, other: TrainState) -> None:
    for mine, theirs in zip(
        one.models[0].state_dict().values(), other.models[0].state_dict().values(), strict=True
    ):
        assert torch.equal(mine, theirs)


def train(run: TrainState) -> None:
    model = cast(Quantised, run.models[0])
    model.adapter(torch.randn(2, SIDE)).sum().backward()
    run.updates.complete_step(2)


def test_frozen_weights_are_not_sent_to_a_rank_that_has_them() -> None:
    giver, taker = new_run(), new_run()
    train(giver)
    with torch.no_grad():
        cast(Quantised, taker.models[0]).adapter.weight.zero_()
    assert sent(giver, taker) < 1 << 18, "the adapter, and its state of Adam"
    assert_equal(giver, taker)
    assert taker.position.step == 1


def replaced(model: Quantised) -> None:
    model.packed[5, 7] += 1


def written(model: Quantised) -> None:
    model.embedding.weight.data[SIDE - 1, SIDE - 1] += 1


@pytest.mark.parametrize("change", [replaced, written])
@pytest.mark.parametrize("of", ["giver", "taker"])
def test_frozen_weights_that_have_changed_are_sent(
    change: Callable[[Quantised], None], of: str
) -> None:
    giver, taker = new_run(), new_run()
    change(cast(Quantised, (giver if of == "giver" else taker).models[0]))
    assert 1 << 22 <= sent(giver, taker) < 1 << 23, "one of the two"
    assert_equal(giver, taker)


def test_a_rank_with_other_weights_gets_all() -> None:
    giver, taker = new_run(), new_run(seed=1)
    assert sent(giver, taker) > 1 << 23
    assert_equal(giver, taker)


def test_a_model_on_its_device_is_not_moved() -> None:
    new_run()
    with pytest.raises(
        ConfigurationError, match=r"cannot move model to meta .*`4-bit`.* load it there"
    ):
        TrainState({"model": Quantised(side=SIDE)}, seed=0, device=torch.device("meta"))


def test_a_model_on_another_device_is_moved() -> None:
    model = nn.Linear(2, 2)
    TrainState({"model": model}, seed=0, device=torch.device("meta"))
    assert model.weight.device.type == "meta"


@pytest.mark.parametrize("of", [by_hash, by_sum])
@pytest.mark.parametrize("size", [1, 7, 8, 1 << 16, (1 << 20) + 3])
def test_any_change_changes_the_fingerprint(size: int, of: Callable[[Tensor], int]) -> None:
    data = torch.arange(size).to(torch.uint8)
    first = of(data)
    assert of(data.clone()) == first
    found = {first, of(torch.cat([data, torch.zeros(1, dtype=torch.uint8)]))}
    places = {0, size // 2, size - 1}
    for at in places:
        for bit in (0, 6):
            other = data.clone()
            other[at] ^= 1 << bit
            found.add(of(other))
    assert len(found) == 2 + 2 * len(places)


def test_order_and_shape_of_memory_do_not_hide_a_change() -> None:
    tensor = torch.arange(64.0).reshape(8, 8)
    assert fingerprint(tensor) != fingerprint(tensor.T)
    assert fingerprint(tensor) == fingerprint(tensor.T.contiguous().T)
    assert fingerprint(tensor) != fingerprint(tensor.flip(0))
