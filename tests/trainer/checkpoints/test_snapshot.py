"""Copies of a state, which are saved while the state changes."""

from __future__ import annotations

import copy
from typing import Any

import torch
from ddp_trainer.checkpoints.snapshot import Snapshot
from ddp_trainer.system.buffers import size_of, tensors
from torch import nn

from tests.trainer.support.pods import assert_same


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a model with buffers and tied weights, and an optimizer with a state."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters())
    step(model, optimizer)
    return model, optimizer


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().sum().backward()
    optimizer.step()


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "position": {"step": 3, "names": ["a"], "shape": (1, 2)},
    }


def test_a_copy_has_the_same_bits_and_keeps_them() -> None:
    model, optimizer = trained()
    taken = Snapshot().take(state_of(model, optimizer))
    before = copy.deepcopy(state_of(model, optimizer))
    assert_same(taken, before)
    assert vars(taken["model"]) == vars(model.state_dict())  # versions of the modules
    step(model, optimizer)
    assert_same(taken, before)


def test_the_memory_is_used_again() -> None:
    model, optimizer = trained()
    snapshot = Snapshot()
    first = [tensor.data_ptr() for tensor in tensors(snapshot.take(state_of(model, optimizer)))]
    step(model, optimizer)
    taken = snapshot.take(state_of(model, optimizer))
    assert [tensor.data_ptr() for tensor in tensors(taken)] == first
    assert_same(taken, state_of(model, optimizer))


def test_a_state_of_another_shape_gets_other_memory() -> None:
    snapshot = Snapshot()
    snapshot.take({"a": torch.zeros(3), "b": torch.zeros(2, 2)})
    for state in (
        {"b": torch.ones(2, 2), "c": torch.ones(3, dtype=torch.bfloat16)},
        {"a": torch.ones(5), "b": [torch.rand(2, 3).T, torch.zeros(0)]},
        {"a": torch.tensor(3.0), "b": torch.rand(2, dtype=torch.complex64).conj()},
        {"a": torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last), "b": torch.arange(3)},
        {},
    ):
        assert_same(snapshot.take(state), state)


def test_tied_weights_stay_tied() -> None:
    model, optimizer = trained()
    taken = Snapshot().take(state_of(model, optimizer))["model"]
    assert taken["2.weight"].data_ptr() == taken["0.weight"].data_ptr()
    assert taken["2.bias"].data_ptr() != taken["0.bias"].data_ptr()


def test_the_size_is_that_of_all_tensors() -> None:
    assert size_of({"a": [torch.zeros(3)], "b": (torch.zeros(2, dtype=torch.int8), "text")}) == 14
