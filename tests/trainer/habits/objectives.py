"""Loops with other losses than one of one model: teachers, adversaries, pairs, penalties."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional

from tests.trainer.habits.registry import (
    CLASSES,
    EPOCHS,
    FEATURES,
    Join,
    Models,
    habit,
    loader,
    loss_of,
    network,
    sgd,
    trained,
)


@habit
def two_losses_added_up(join: Join) -> Models:
    def loss_by(net: Any, batch: Any) -> Tensor:
        inputs, targets = batch
        outputs = net(inputs)
        loss: Tensor = loss_of(outputs, targets) + 0.1 * outputs.square().mean()
        return loss

    return trained(join, loss_by=loss_by)


@habit
def two_passes_in_a_step(join: Join) -> Models:
    """Each call of the model has its own backward pass."""
    model = network()
    optimizer = sgd(model)
    with join(model=model, optimizer=optimizer) as job:
        net = job.wrap(model)
        for _ in job.epochs(EPOCHS):
            for inputs, targets in job.batches(loader()):
                loss = loss_of(net(inputs), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                loss = loss_of(net(inputs.flip(1)), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                job.step(loss)
    return [model]


@habit
def auxiliary_head(join: Join) -> Models:
    class Supervised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.first, self.last = network(), nn.Linear(8, CLASSES), nn.Identity()

        def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
            hidden = self.body[:2](inputs)
            return self.body[2](hidden), self.first(hidden)

    def loss_by(net: Any, batch: Any) -> Tensor:
        inputs, targets = batch
        last, first = net(inputs)
        return loss_of(last, targets) + 0.4 * loss_of(first, targets)

    return trained(join, Supervised(), loss_by=loss_by)


@habit
def model_that_returns_losses(join: Join) -> Models:
    """As torchvision's detection models do, which return losses in train mode only."""

    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, inputs: Tensor, targets: Tensor | None = None) -> Any:
            outputs = self.inner(inputs)
            if not self.training or targets is None:
                return outputs
            return {"classes": loss_of(outputs, targets), "size": outputs.square().mean()}

    return trained(join, Detector(), loss_by=lambda net, batch: sum(net(*batch).values()))


@habit
def loss_with_parameters(join: Join) -> Models:
    """As ArcFace or a learned weight of losses: the loss is a module of its own."""
    model = network()
    head = nn.Linear(CLASSES, CLASSES)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
    with join(model=model, head=head, optimizer=optimizer) as job:
        net, criterion = job.wrap(model), job.wrap(head)
        for _ in job.epochs(EPOCHS):
            for inputs, targets in job.batches(loader()):
                loss = loss_of(criterion(net(inputs)), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                job.step(loss)
    return [model, head]


@habit
def centers_with_an_optimizer_of_their_own(join: Join) -> Models:
    model = network()
    centers = nn.Linear(CLASSES, CLASSES, bias=False)
    with join(
        model=model,
        centers=centers,
        optimizer=sgd(model),
        of_centers=sgd(centers, 0.5),
    ) as job:
        net, near = job.wrap(model), job.wrap(centers)
        for _ in job.epochs(EPOCHS):
            for inputs, targets in job.batches(loader()):
                outputs = net(inputs)
                distance = near(functional.one_hot(targets, CLASSES).float()) - outputs
                loss = loss_of(outputs, targets) + 0.1 * distance.square().mean()
                loss.backward()
                job.step(loss)
    return [model, centers]


@habit
def distillation_from_a_frozen_teacher(join: Join) -> Models:
    teacher = network(width=16).eval().requires_grad_(False)

    def loss_by(net: Any, batch: Any) -> Tensor:
        inputs, targets = batch
        outputs = net(inputs)
        with torch.no_grad():
            wanted = teacher(inputs).softmax(1)
        return loss_of(outputs, targets) + loss_of(outputs, wanted)

    return trained(join, loss_by=loss_by)


@habit
def mean_teacher_after_each_step(join: Join) -> Models:
    model = network()
    teacher = copy.deepcopy(model).requires_grad_(False)
    optimizer = sgd(model)
    with join(model=model, teacher=teacher, optimizer=optimizer) as job:
        net = job.wrap(model)
        for _ in job.epochs(EPOCHS):
            for inputs, targets in job.batches(loader()):
                outputs = net(inputs)
                with torch.no_grad():
                    wanted = teacher(inputs)
                loss = loss_of(outputs, targets) + (outputs - wanted).square().mean()
                loss.backward()
                if job.step(loss):
                    pairs = zip(teacher.parameters(), model.parameters(), strict=True)
                    for average, parameter in pairs:
                        average.data.mul_(0.9).add_(parameter.data, alpha=0.1)
    return [model, teacher]


@habit
def averaged_weights(join: Join) -> Models:
    model = network()
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = sgd(model)
    with join(model=model, average=average, optimizer=optimizer) as job:
        net = job.wrap(model)
        for _ in job.epochs(EPOCHS):
            for inputs, targets in job.batches(loader()):
                loss = loss_of(net(inputs), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                if job.step(loss):
                    average.update_parameters(model)
    return [model, average]


class Contrast(nn.Module):
    """Momentum contrast: an encoder averaged in the forward pass, and a queue of keys."""

    queue: Tensor

    def __init__(self, how: str) -> None:
        super().__init__()
        self.query, self.key = network(), network().requires_grad_(False)
        self.how = how
        self.register_buffer("queue", functional.normalize(torch.randn(CLASSES, 12), dim=0))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def _average(self) -> None:
        pairs = zip(self.query.parameters(), self.key.parameters(), strict=True)
        for query, key in pairs:
            if self.how == "assigned":
                key.data = key.data * 0.9 + query.data * 0.1
            elif self.how == "through data":
                key.data.mul_(0.9).add_(query.data, alpha=0.1)
            else:
                key.mul_(0.9).add_(query, alpha=0.1)

    @torch.no_grad()
    def _enqueue(self, keys: Tensor) -> None:
        all_keys = [torch.zeros_like(keys) for _ in range(dist.get_world_size())]
        dist.all_gather(all_keys, keys)
        place: Any = self.place
        for one in torch.cat(all_keys):
            self.queue[:, int(place)] = one
            place[0] = (int(place) + 1) % self.queue.shape[1]

    def forward(self, inputs: Tensor) -> Tensor:
        queries = functional.normalize(self.query(inputs), dim=1)
        with torch.no_grad():
            self._average()
            keys = functional.normalize(self.key(inputs.flip(1)), dim=1)
        positive = (queries * keys).sum(1, keepdim=True)
        outputs = torch.cat([positive, queries @ self.queue.clone()], dim=1)
        self._enqueue(keys)
        return outputs


def _contrast(join: Join, how: str) -> Models:
    torch.manual_seed(3)
    model = Contrast(how)
    optimizer = sgd(model, momentum=0.9)
    with join(model=model, optimizer=optimizer) as job:
        net = job.wrap(model)
        for _ in job.epochs(EPOCHS):
            for inputs, _targets in job.batches(loader(drop_last=True)):
                outputs = net(inputs)
                loss = loss_of(outputs, torch.zeros(len(outputs), dtype=torch.long))
                loss.backward()  # type: ignore[no-untyped-call]
                job.step(loss)
    return [model]


@habit
def momentum_encoder_in_place(join: Join) -> Models:
    return _contrast(join, "in place")


@habit
def momentum_encoder_through_data(join: Join) -> Models:
    return _contrast(join, "through data")


@habit
def momentum_encoder_assigned(join: Join) -> Models:
    return _contrast(join, "assigned")


@habit
def gradient_penalty(join: Join) -> Models:
    """A second derivative: the norm of the gradient of the inputs is a part of the loss."""

    def loss_by(net: Any, batch: Any) -> Tensor:
        inputs, targets = batch
        inputs.requires_grad_()
        loss = loss_of(net(inputs), targets)
        [slope] = torch.autograd.grad(loss, inputs, create_graph=True)
        penalised: Tensor = loss + slope.square().sum()
        return penalised

    return trained(join, loss_by=loss_by)


@habit
def adversarial_examples(join: Join) -> Models:
    """The first pass is for the gradient of the inputs, by the model itself."""
    model = network()

    def loss_by(net: Any, batch: Any) -> Tensor:
        inputs, targets = batch
        inputs.requires_grad_()
        [slope] = torch.autograd.grad(loss_of(model(inputs), targets), inputs)
        return loss_of(net(inputs.detach() + 0.1 * slope.sign()), targets)

    return trained(join, model, loss_by=loss_by)


def _adversaries() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    make = nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, FEATURES))
    judge = nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, 1))
    return make, judge


@habit
def adversaries_in_turns(join: Join) -> Models:
    make, judge = _adversaries()
    of_make, of_judge = sgd(make), sgd(judge)
    with join(make=make, judge=judge, of_make=of_make, of_judge=of_judge) as job:
        maker, critic = job.wrap(make), job.wrap(judge)
        for _ in job.epochs(EPOCHS):
            for inputs, _targets in job.batches(loader()):
                made = maker(inputs)
                loss = (critic(made.detach()) - critic(inputs)).mean()
                loss.backward()
                job.step(loss, optimizer=of_judge)
                loss = -critic(made).mean()
                loss.backward()
                job.step(loss, optimizer=of_make)
    return [make, judge]


@habit
def clipped_weights_of_a_critic(join: Join) -> Models:
    """As in WGAN; the critic's weights are clipped right after its turn."""
    make, judge = _adversaries()
    of_make, of_judge = sgd(make), sgd(judge)
    with join(make=make, judge=judge, of_make=of_make, of_judge=of_judge) as job:
        maker, critic = job.wrap(make), job.wrap(judge)
        for _ in job.epochs(EPOCHS):
            for inputs, _targets in job.batches(loader()):
                loss = (critic(maker(inputs).detach()) - critic(inputs)).mean()
                loss.backward()
                job.step(loss, optimizer=of_judge)
                for parameter in judge.parameters():
                    parameter.data.clamp_(-0.3, 0.3)
                loss = -critic(maker(inputs)).mean()
                loss.backward()
                job.step(loss, optimizer=of_make)
    return [make, judge]


@habit
def one_step_for_both_adversaries(join: Join) -> Models:
    make, judge = _adversaries()
    of_make, of_judge = sgd(make), sgd(judge)
    with join(make=make, judge=judge, of_make=of_make, of_judge=of_judge) as job:
        maker, critic = job.wrap(make), job.wrap(judge)
        for _ in job.epochs(EPOCHS):
            for inputs, _targets in job.batches(loader()):
                loss = (critic(inputs) - maker(inputs).sum(1, keepdim=True)).square().mean()
                loss.backward()
                job.step(loss)
    return [make, judge]


@habit
def values_by_all_ranks_in_the_loss(join: Join) -> Models:
    """The script's own collectives between the model's call and its step."""
    model = network()
    optimizer = sgd(model)
    with join(model=model, optimizer=optimizer) as job:
        net = job.wrap(model)
        for _ in job.epochs(EPOCHS):
            for inputs, targets in job.batches(loader()):
                outputs = net(inputs)
                mean = outputs.detach().mean(0)
                dist.all_reduce(mean)
                loss = loss_of(outputs - 0.1 * mean / job.world_size, targets)
                loss.backward()  # type: ignore[no-untyped-call]
                job.step(loss)
    return [model]
