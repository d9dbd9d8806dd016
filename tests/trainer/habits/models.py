"""Loops with models that do more than compute outputs: buffers, shared weights, recomputation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from tests.trainer.habits.registry import (
    CLASSES,
    EPOCHS,
    FEATURES,
    SAMPLES,
    Join,
    Models,
    data,
    habit,
    loss_of,
    network,
    sgd,
    trained,
)


@habit
def batch_norm(join: Join) -> Models:
    return trained(join, network(normalised=True))


@habit
def tied_weights(join: Join) -> Models:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.ReLU(), nn.Linear(FEATURES, FEATURES))
    model[2].weight = model[0].weight
    return trained(join, model)


@habit
def spectral_norm(join: Join) -> Models:
    model = network()
    parametrizations.spectral_norm(model[0])
    return trained(join, model)


@habit
def old_spectral_norm(join: Join) -> Models:
    model = network()
    nn.utils.spectral_norm(model[0])
    return trained(join, model)


@habit
def weight_norm(join: Join) -> Models:
    model = network()
    parametrizations.weight_norm(model[0])
    return trained(join, model)


@habit
def recomputed_activations(join: Join) -> Models:
    class Recomputed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network(normalised=True)

        def forward(self, inputs: Tensor) -> Any:
            return checkpoint(self.inner, inputs, use_reentrant=False)

    return trained(join, Recomputed())


@habit
def static_graph(join: Join) -> Models:
    return trained(join, ddp={"static_graph": True, "find_unused_parameters": False})


@habit
def small_buckets(join: Join) -> Models:
    return trained(join, network(width=64), ddp={"bucket_cap_mb": 0.001})


@habit
def layers_that_take_turns(join: Join) -> Models:
    """Stochastic depth without chance: each step leaves another layer out."""

    class Deep(nn.Module):
        calls: Tensor

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.ModuleList(nn.Linear(FEATURES, FEATURES) for _ in range(3))
            self.last = nn.Linear(FEATURES, CLASSES)
            self.register_buffer("calls", torch.zeros((), dtype=torch.long))

        def forward(self, inputs: Tensor) -> Tensor:
            self.calls += 1
            for number, layer in enumerate(self.layers):
                if int(self.calls) % 3 != number:
                    inputs = inputs + layer(inputs).tanh()
            outputs: Tensor = self.last(inputs)
            return outputs

    return trained(join, Deep(), ddp={"find_unused_parameters": True})


@habit
def mask_made_by_the_first_call(join: Join) -> Models:
    class Masked(nn.Module):
        mask: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, inputs: Tensor) -> Tensor:
            if not hasattr(self, "mask"):
                mask = (torch.arange(FEATURES) % 2).float()
                self.register_buffer("mask", mask, persistent=False)
            outputs: Tensor = self.inner(inputs * self.mask)
            return outputs

    return trained(join, Masked())


@habit
def table_that_grows(join: Join) -> Models:
    """As rotary positions: a buffer that is replaced when it is too short."""

    class Grown(nn.Module):
        table: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.inner = network()
            self.register_buffer("table", torch.zeros(0), persistent=False)
            self.calls = 0

        def forward(self, inputs: Tensor) -> Tensor:
            self.calls += 1
            if len(self.table) < FEATURES:
                self.table = torch.arange(len(self.table) + FEATURES).float().sin()
            outputs: Tensor = self.inner(inputs + self.table[:FEATURES])
            return outputs

    return trained(join, Grown())


@habit
def observers_of_a_quantised_training(join: Join) -> Models:
    """Observers with buffers that begin empty, and take a shape in the first call."""

    class Observed(nn.Module):
        low: Tensor
        high: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.inner = network()
            self.register_buffer("low", torch.zeros(0))
            self.register_buffer("high", torch.zeros(0))

        def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
            """Take the shapes of the state, as torch's observers do."""
            for name in ("low", "high"):
                self.get_buffer(name).resize_(state[prefix + name].shape)
            super()._load_from_state_dict(state, prefix, *rest)

        def forward(self, inputs: Tensor) -> Tensor:
            low, high = inputs.detach().amin(0), inputs.detach().amax(0)
            if self.low.numel() == 0:
                self.low.resize_(low.shape).copy_(low)
                self.high.resize_(high.shape).copy_(high)
            else:
                self.low.copy_(torch.minimum(low, self.low))
                self.high.copy_(torch.maximum(high, self.high))
            scale = (self.high - self.low).clamp_min(1e-3) / 255
            outputs: Tensor = self.inner((inputs / scale).round() * scale)
            return outputs

    return trained(join, Observed())


@habit
def running_mean_of_outputs(join: Join) -> Models:
    class Centred(nn.Module):
        mean: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.inner = network()
            self.register_buffer("mean", torch.zeros(CLASSES))

        def forward(self, inputs: Tensor) -> Tensor:
            outputs: Tensor = self.inner(inputs)
            self.mean.mul_(0.9).add_(outputs.detach().mean(0), alpha=0.1)
            return outputs - self.mean.clone()

    return trained(join, Centred())


@habit
def sparse_embeddings(join: Join) -> Models:
    torch.manual_seed(0)
    words, last = nn.Embedding(SAMPLES, 8, sparse=True), nn.Linear(8, CLASSES)
    _, targets = data()
    pairs = torch.utils.data.TensorDataset(torch.arange(SAMPLES), targets)
    samples = torch.utils.data.DataLoader(pairs, batch_size=4, shuffle=True)
    of_words, of_last = torch.optim.SparseAdam(words.parameters(), lr=0.1), sgd(last)
    with join(words=words, last=last, of_words=of_words, of_last=of_last) as job:
        first, second = job.wrap(words), job.wrap(last)
        for _ in job.epochs(EPOCHS):
            for numbers, wanted in job.batches(samples):
                loss = loss_of(second(first(numbers)), wanted)
                loss.backward()  # type: ignore[no-untyped-call]
                job.step(loss)
    return [words, last]


@habit
def compiled_model(join: Join) -> Models:
    model = network()
    model.compile(backend="eager")
    return trained(join, model)


@habit
def hooks_on_layers(join: Join) -> Models:
    model = network()
    seen: list[float] = []
    model[0].register_forward_hook(lambda _, __, outputs: seen.append(outputs.sum().item()))
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient * 0.5)  # type: ignore[no-untyped-call]
    return trained(join, model)
