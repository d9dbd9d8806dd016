"""Loops that train a part of a model, or parts of it differently."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.trainer.habits.registry import (
    CLASSES,
    FEATURES,
    Join,
    Models,
    habit,
    loader,
    loss_of,
    network,
    sgd,
    train,
    trained,
)


@habit
def frozen_backbone(join: Join) -> Models:
    model = network()
    model[0].requires_grad_(False)
    return trained(join, model)


@habit
def head_replaced_before_training(join: Join) -> Models:
    model = network()
    model[-1] = nn.Linear(8, CLASSES)
    return trained(join, model)


@habit
def frozen_batch_norm(join: Join) -> Models:
    """As in detection: the statistics of a pretrained model stay as they are."""
    model = network(normalised=True)
    optimizer = sgd(model)
    with join(model=model, optimizer=optimizer) as job:
        net = job.wrap(model)
        net.train()
        model[1].eval()
        train(job, net)
    return [model]


@habit
def net_in_eval_mode(join: Join) -> Models:
    """The wrapper, too, is in eval mode while it is trained."""
    model = network(normalised=True)
    optimizer = sgd(model)
    with join(model=model, optimizer=optimizer) as job:
        net = job.wrap(model)
        net.eval()
        train(job, net)
    return [model]


@habit
def train_mode_of_the_inner_model(join: Join) -> Models:
    """The evaluation calls `net.eval()`, but the next epoch begins with `model.train()`."""
    model = network(normalised=True)
    optimizer = sgd(model)
    with join(model=model, optimizer=optimizer) as job:
        net = job.wrap(model)
        for _ in job.epochs(2):
            model.train()
            for inputs, targets in job.batches(loader()):
                loss = loss_of(net(inputs), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                job.step(loss)
            net.eval()
            with torch.no_grad():
                net(torch.ones(1, FEATURES))
    return [model]


@habit
def unfrozen_in_the_second_epoch(join: Join) -> Models:
    """As in gradual unfreezing; a plain script wraps its model again, and so does this one."""
    model = network()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with join(model=model, optimizer=optimizer) as job:
        net = job.wrap(model)
        for epoch in job.epochs(2):
            model[0].requires_grad_(epoch > 0)
            if epoch > 0 and hasattr(job, "wrap_again"):
                net = job.wrap_again(model)
            for inputs, targets in job.batches(loader()):
                loss = loss_of(net(inputs), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                job.step(loss)
    return [model]


@habit
def rates_by_layer(join: Join) -> Models:
    model = network()
    groups = [
        {"params": layer.parameters(), "lr": 0.1 / (number + 1)}
        for number, layer in enumerate(model)
        if isinstance(layer, nn.Linear)
    ]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    return trained(join, model, optimizer=optimizer)


@habit
def no_decay_of_biases(join: Join) -> Models:
    model = network()
    weights = [each for name, each in model.named_parameters() if name.endswith("weight")]
    biases = [each for name, each in model.named_parameters() if name.endswith("bias")]
    optimizer = torch.optim.AdamW(
        [{"params": weights, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0}], lr=0.01
    )
    return trained(join, model, optimizer=optimizer)


class LowRank(nn.Module):
    """A frozen layer with a trained difference of low rank, which begins as zero."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, 2, bias=False)
        self.up = nn.Linear(2, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs) + self.up(self.down(inputs))
        return outputs


@habit
def low_rank_adapters(join: Join) -> Models:
    model = network()
    for number in (0, 2):
        model[number] = LowRank(model[number])  # type: ignore[arg-type]
    return trained(join, model)


@habit
def prompt_that_is_trained_alone(join: Join) -> Models:
    class Prompted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network().requires_grad_(False)
            self.prompt = nn.Parameter(torch.zeros(FEATURES))

        def forward(self, inputs: Tensor) -> Tensor:
            outputs: Tensor = self.inner(inputs + self.prompt)
            return outputs

    model = Prompted()
    return trained(join, model)
