"""Changes of buffers by a step's passes can be undone, with few operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ddp_trainer.exit_codes import NewProcessError
from ddp_trainer.run import buffers
from ddp_trainer.run.train_state import TrainState
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

LAYERS = 53
"""Number of batch norm layers, as in ResNet-50."""


class Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


class Packed(nn.Module):
    """Weights of 4 bits, which no pass changes, and buffers that passes change."""

    packed: Tensor
    codes: Tensor
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.Sequential(*(nn.BatchNorm1d(4) for _ in range(LAYERS)))
        self.register_buffer("packed", torch.randint(1 << 30, (1 << 16,), dtype=torch.int32))
        self.register_buffer("codes", torch.zeros(1 << 16))
        self.register_buffer("calls", torch.zeros(1 << 16, dtype=torch.int64))

    def forward(self, inputs: Tensor) -> Tensor:
        """Change what passes may change, with and without a new version in torch."""
        self.codes.data.add_(1)
        self.calls.add_(1)
        outputs: Tensor = self.norms(inputs)
        return outputs


@pytest.fixture
def model() -> Packed:
    torch.manual_seed(0)
    return Packed()


@pytest.fixture
def run(model: Packed) -> TrainState:
    run = TrainState({"model": model}, seed=0, device=torch.device("cpu"))
    for _ in range(3):  # in the first steps, parameters are read as a whole
        run.passes.before()
        run.passes.end()
    return run


class Averaged(nn.Module):
    """A momentum encoder: its frozen parameters follow in each pass."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.own, self.mean = nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        for mean, own in zip(self.mean.parameters(), self.own.parameters(), strict=True):
            mean.mul_(0.5).add_(own, alpha=0.5)
        outputs: Tensor = self.own(inputs)
        return outputs


def state_of(model: nn.Module) -> TrainState:
    return TrainState({"model": model}, seed=0, device=torch.device("cpu"))


def test_first_step_of_a_new_process_can_be_undone_too() -> None:
    old, new = Averaged(), Averaged()
    of_old, of_new = state_of(old), state_of(new)
    of_old.passes.before()
    with torch.no_grad():
        old(torch.ones(1, 2))
    of_old.passes.end()
    of_new.load_state_dict(of_old.full_state_dict())
    before = of_new.passes.before()
    with torch.no_grad():
        new(torch.ones(1, 2))
    of_new.passes.end(are_undone=True)
    of_new.passes.take_back(before)
    assert torch.equal(new.mean.weight, old.mean.weight)


def test_first_step_of_a_job_whose_changes_nobody_knows_is_not_undone() -> None:
    model = Averaged()
    run = state_of(model)
    run.passes.before()
    with torch.no_grad():
        model(torch.ones(1, 2))
    with pytest.raises(NewProcessError, match=r"changed mean\.weight, mean\.bias for the first"):
        run.passes.end(are_undone=True)


def operations(what: Callable[[], object]) -> Counter[str]:
    counted = Counted()
    with counted:
        what()
    return counted.calls


def copies(model: nn.Module) -> list[Tensor]:
    return [buffer.clone() for buffer in model.buffers()]


def test_buffers_are_copied_together(run: TrainState, model: Packed) -> None:
    run.passes.before()
    model(torch.randn(8, 4))
    calls = operations(run.passes.before)
    assert calls["_foreach_copy_"] == 2, "one for each type"
    assert calls.total() <= 4, calls


def test_a_step_like_the_one_before_looks_at_no_tensor_alone(
    run: TrainState, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.passes.before()
    monkeypatch.setattr(buffers, "_copy", None)
    run.passes.before()


@pytest.mark.parametrize("name", ["codes", "packed"])
@pytest.mark.parametrize("size", [3, 1 << 17])
def test_buffers_that_grow_in_place_are_copied(
    run: TrainState, model: Packed, name: str, size: int
) -> None:
    run.passes.before()
    run.passes.before()  # like the one before
    buffer: Tensor = getattr(model, name)
    buffer.data = torch.ones(size, dtype=buffer.dtype)
    before = run.passes.before()
    buffer.zero_()
    run.passes.take_back(before)
    assert torch.equal(model.get_buffer(name), torch.ones(size, dtype=buffer.dtype))


def test_unchanged_buffers_are_not_copied(run: TrainState, model: Packed) -> None:
    copy = run.passes.before().values[[name for name, _ in model.named_buffers()].index("packed")]
    copy.zero_()  # is written again, if it is copied
    model(torch.randn(8, 4))
    before = run.passes.before()
    assert not copy.any()
    run.passes.set_buffers(before)
    assert model.packed.any()
    model.packed.add_(1)
    run.passes.before()
    assert torch.equal(copy, model.packed)


@pytest.mark.parametrize("steps", [1, 3])
def test_changes_of_passes_are_undone(run: TrainState, model: Packed, steps: int) -> None:
    for _ in range(steps):
        expected = copies(model)
        before = run.passes.before()
        for _ in range(2):
            model(torch.randn(8, 4))
            changed = [not torch.equal(*both) for both in zip(copies(model), expected, strict=True)]
            assert sum(changed) == len(expected) - 1
            run.passes.take_back(before)
            assert all(torch.equal(*both) for both in zip(copies(model), expected, strict=True))
        model(torch.randn(8, 4))


def test_replaced_buffers_are_copied(run: TrainState, model: Packed) -> None:
    run.passes.before()
    model.packed = torch.ones(1 << 16, dtype=torch.int32)
    before = run.passes.before()
    model.packed = torch.zeros(1 << 16, dtype=torch.int32)
    run.passes.take_back(before)
    assert bool((model.packed == 1).all())
