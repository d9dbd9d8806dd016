"""The loops by name, and what they share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

SAMPLES = 48
FEATURES = 6
CLASSES = 3
BATCH = 4
EPOCHS = 2


class Job(Protocol):
    """The part of `ddp_trainer.Job` that loops use."""

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def is_main(self) -> bool: ...
    @property
    def steps_done(self) -> int: ...
    @property
    def weight(self) -> float: ...
    def wrap(self, model: nn.Module, **ddp: Any) -> nn.Module: ...
    def epochs(self, count: int, *, max_steps: int = 0) -> Iterator[int]: ...
    def batches(self, loader: DataLoader[Any], *, accumulate: int = 1) -> Iterator[Any]: ...
    def step(
        self, loss: Any = None, *, optimizer: Any = None, clip_grad_norm: float | None = None
    ) -> bool: ...
    def sum(self, *values: float) -> list[float]: ...
    def share(self, loader: DataLoader[Any]) -> Iterator[Any]: ...
    def evaluated(self, score: float) -> None: ...


Join = Callable[..., AbstractContextManager[Job]]
"""`ddp_trainer.join`, or what a plain script does in its place."""
Models = Sequence[nn.Module]
Loop = Callable[[Join], Models]
"""Trains with `join`, and returns the models."""

LOOPS: dict[str, Loop] = {}


def habit(loop: Loop) -> Loop:
    """Name a loop."""
    LOOPS[loop.__name__] = loop
    return loop


def data() -> tuple[Tensor, Tensor]:
    """Return inputs and classes, the same each time."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, FEATURES, generator=generator)
    return inputs, torch.arange(SAMPLES) % CLASSES


def loader(**settings: Any) -> DataLoader[Any]:
    """Return a loader of pairs of inputs and classes."""
    return DataLoader(TensorDataset(*data()), **{"batch_size": BATCH, "shuffle": True} | settings)


def network(*, normalised: bool = False, width: int = 8) -> nn.Sequential:
    """Return a small classifier, the same each time."""
    torch.manual_seed(0)
    norm: list[nn.Module] = [nn.BatchNorm1d(width)] if normalised else []
    return nn.Sequential(nn.Linear(FEATURES, width), *norm, nn.ReLU(), nn.Linear(width, CLASSES))


def sgd(model: nn.Module, lr: float = 0.1, **settings: Any) -> torch.optim.SGD:
    """Return an optimizer of what is trained in a model."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.SGD(trained, lr=lr, **settings)


def loss_of(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of a batch."""
    return nn.functional.cross_entropy(outputs, targets)


Batch = Any
Loss = Callable[[Any, Batch], Any]
"""Computes the loss of a batch, with what `job.wrap` returned."""


def usual_loss(net: Any, batch: Batch) -> Any:
    """Return the loss of a pair of inputs and classes."""
    inputs, targets = batch
    return loss_of(net(inputs), targets)


def train(
    job: Job,
    net: nn.Module,
    samples: DataLoader[Any] | None = None,
    *,
    epochs: int = EPOCHS,
    loss_by: Loss = usual_loss,
    after: Callable[[Job, nn.Module, Tensor], object] = lambda *_: None,
) -> None:
    """Train by the plainest loop of all; `after` is called after each step."""
    samples = samples or loader()
    for _ in job.epochs(epochs):
        for batch in job.batches(samples):
            loss = loss_by(net, batch)
            loss.backward()
            job.step(loss)
            after(job, net, loss)


def trained(
    join: Join,
    model: nn.Module | None = None,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    ddp: Mapping[str, Any] | None = None,
    **loop: Any,
) -> Models:
    """Train one model with one optimizer; `ddp`: arguments of `job.wrap`, `loop`: of `train`."""
    model = model if model is not None else network()
    optimizer = optimizer or sgd(model)
    with join(model=model, optimizer=optimizer) as job:
        train(job, job.wrap(model, **ddp or {}), **loop)
    return [model]


def digest(models: Models, *, with_buffers: bool) -> str:
    """Return a digest of the parameters of some models; only rank 0's buffers must be equal."""
    found = hashlib.sha256()
    for model in models:
        named = [*model.named_parameters(), *(model.named_buffers() if with_buffers else ())]
        for name, tensor in named:
            found.update(name.removeprefix("module.").encode())
            found.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()[:16]
