"""The example scripts move each tensor to the model's device.

They run on torch's `meta` device, which has no values. It lets some operations mix devices; here
none may, as on a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import ddp_trainer
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.trainer.library.test_your_script import NAMES, SCRIPTS

ELSEWHERE = torch.device("meta")


class OneDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operations on tensors of two devices; a single number may come from the CPU."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = tree_leaves((args, kwargs))
        found = {each.device for each in given if isinstance(each, torch.Tensor) and each.dim()}
        if len(found) > 1:
            raise RuntimeError(f"{func} got tensors on more than one device")
        return func(*args, **(kwargs or {}))


class Job:
    """A job of one rank on that device, with one batch of each loader."""

    device = ELSEWHERE
    is_main = False

    def __init__(self, **training: Any) -> None:
        training["model"].to(ELSEWHERE)
        self.optimizer = training["optimizer"]
        self.steps = 0

    def __enter__(self) -> Job:
        return self

    def __exit__(self, type_: object, *_: object) -> None:
        assert type_ or self.steps > 0

    def wrap(self, model: nn.Module) -> nn.Module:
        return model

    def epochs(self, _: int) -> Iterator[int]:
        with OneDevice():  # type: ignore[no-untyped-call]
            yield 0

    def batches(self, loader: Any) -> Iterator[Any]:
        yield next(iter(loader))

    share = batches

    def step(self, loss: torch.Tensor) -> None:
        assert loss.device == ELSEWHERE
        self.optimizer.step()
        self.steps += 1

    def sum(self, *numbers: float) -> tuple[float, ...]:
        return numbers


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    item = torch.Tensor.item
    monkeypatch.setattr(ddp_trainer, "join", Job)
    monkeypatch.setattr(sys, "argv", ["script"])
    monkeypatch.setattr(torch.Tensor, "item", lambda of: 0.0 if of.is_meta else item(of))


@pytest.mark.parametrize("name", NAMES)
def test_all_tensors_are_on_the_models_device(name: str) -> None:
    text = (SCRIPTS / "after" / f"{name}.py").read_text()
    exec(compile(text, "script.py", "exec"), {"__name__": "__main__"})
