"""Scripts that use `torch.distributed.checkpoint` save and load the same state dicts in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ddp_trainer.memory import dcp, saving
from ddp_trainer.settings.environment import Environment
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from tests.ports import free_port
from tests.trainer.memory.pods import launcher, variables
from tests.trainer.memory.sameness import same


class App:
    """A stateful object, as DCP's documentation recommends it."""

    def __init__(self) -> None:
        self.model = nn.Linear(2, 3)
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Environment]:
    """The environment of this process, as of a rank."""
    for name, value in variables(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DDP_STATUS_PORT", str(free_port()))
    saving._saver.cache_clear()
    yield Environment.from_env(os.environ)
    saving._saver.cache_clear()


def test_objects_and_tensors_continue_from_what_was_saved(
    environment: Environment, tmp_path: Path
) -> None:
    app, weights = App(), torch.rand(3)
    app.model(torch.rand(2)).sum().backward()
    app.optimizer.step()
    assert dcp.save(4, {"app": app, "weights": weights, "epoch": 2})

    other, zeros = App(), torch.zeros(3)
    state: dict[str, Any] = {"app": other, "weights": zeros, "epoch": 0}
    path = tmp_path / "own" / "0" / "1-4-0-1-sharded.snapshot"
    with launcher(environment, (200, {"path": str(path), "step": 4, "generation": 1})):
        assert dcp.load(state) == 4
    assert same(other.state_dict(), app.state_dict())
    assert state["weights"] is zeros
    assert same(zeros, weights)
    assert state["epoch"] == 2


def test_without_a_snapshot_nothing_changes(environment: Environment) -> None:
    state = {"epoch": 1}
    with launcher(environment, (200, {"reason": "none"})):
        assert dcp.load(state) is None
    assert state == {"epoch": 1}
