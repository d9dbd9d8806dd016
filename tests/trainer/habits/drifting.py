"""Loops in which ranks would drift apart, or call different methods. Each must be refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, Sampler, Subset, TensorDataset

from tests.trainer.habits.registry import (
    CLASSES,
    SAMPLES,
    Join,
    Models,
    data,
    loader,
    loss_of,
    network,
    sgd,
    train,
)


def two_backward_passes_of_one_call(join: Join) -> Models:
    """DistributedDataParallel averages only the first."""
    model = network()
    optimizer = sgd(model)
    with join(model=model, optimizer=optimizer) as job:
        net = job.wrap(model)
        for inputs, targets in job.batches(loader()):
            outputs = net(inputs)
            loss_of(outputs, targets).backward(retain_graph=True)  # type: ignore[no-untyped-call]
            outputs.square().mean().backward()
            job.step()
    return [model]


def weights_that_depend_on_the_rank(join: Join) -> Models:
    model = network()
    optimizer = sgd(model)
    with join(model=model, optimizer=optimizer) as job:
        net = job.wrap(model)
        for inputs, targets in job.batches(loader()):
            loss_of(net(inputs), targets).backward()  # type: ignore[no-untyped-call]
            if job.is_main:
                next(model.parameters()).data[0].zero_()
            job.step()
    return [model]


def split_without_a_seed(join: Join) -> Models:
    """Each rank trains on another part, some of them on the other's test set."""
    model = network()
    optimizer = sgd(model)
    chosen = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(os.getpid())).tolist()
    samples = DataLoader(Subset(loader().dataset, chosen[: SAMPLES // 2]), batch_size=4)
    with join(model=model, optimizer=optimizer) as job:
        train(job, job.wrap(model), samples)
    return [model]


def embeddings_of_limited_norm(join: Join) -> Models:
    """Each rank limits the rows that it looks up; DistributedDataParallel does not notice."""

    class Limited(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.words = nn.Embedding(SAMPLES, 8, max_norm=1.0)
            self.last = nn.Linear(8, CLASSES)

        def forward(self, words: Tensor) -> Tensor:
            outputs: Tensor = self.last(self.words(words))
            return outputs

    model = Limited()
    optimizer = sgd(model, 1.0)
    _, targets = data()
    pairs = TensorDataset(torch.arange(SAMPLES), targets)
    with join(model=model, optimizer=optimizer) as job:
        train(job, job.wrap(model), DataLoader(pairs, batch_size=4, shuffle=True))
    return [model]


def sum_on_rank_0(join: Join) -> Models:
    model = network()
    optimizer = sgd(model)
    with join(model=model, optimizer=optimizer) as job:
        net = job.wrap(model)
        train(job, net, epochs=1)
        if job.is_main:
            job.sum(1.0)
        train(job, net, epochs=2)
    return [model]


def sums_of_different_lengths(join: Join) -> Models:
    model = network()
    optimizer = sgd(model)
    with join(model=model, optimizer=optimizer) as job:
        train(job, job.wrap(model))
        job.sum(*range(1 + job.rank))
    return [model]


def score_of_rank_0_for_a_plateau(join: Join) -> Models:
    model = network()
    optimizer = sgd(model)
    plateau = ReduceLROnPlateau(optimizer)
    with join(model=model, optimizer=optimizer, plateau=plateau) as job:
        net = job.wrap(model)
        train(job, net, epochs=1)
        if job.is_main:
            job.evaluated(0.5)
        train(job, net, epochs=2)
    return [model]


class Half(Sampler[int]):
    """Every other sample, as a sampler that divides them by itself."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(dist.get_rank(), SAMPLES, 2))

    def __len__(self) -> int:
        return SAMPLES // 2


def sampler_that_divides_by_itself(join: Join) -> Models:
    model = network()
    optimizer = sgd(model)
    with join(model=model, optimizer=optimizer) as job:
        train(job, job.wrap(model), loader(shuffle=False, sampler=Half()))
    return [model]


def _own_part() -> DataLoader[Any]:
    inputs, targets = data()
    part = slice(dist.get_rank(), None, 2)
    return DataLoader(TensorDataset(inputs[part], targets[part]), batch_size=4, shuffle=True)


def data_split_by_rank(join: Join) -> Models:
    model = network()
    optimizer = sgd(model)
    with join(model=model, optimizer=optimizer) as job:
        train(job, job.wrap(model), _own_part())
    return [model]


def evaluation_split_by_rank(join: Join) -> Models:
    model = network()
    optimizer = sgd(model)
    with join(model=model, optimizer=optimizer) as job:
        train(job, job.wrap(model), epochs=1)
        list(job.share(_own_part()))
    return [model]


DRIFTING = {
    data_split_by_rank: "job.batches() divides the data, so give it all of them on all ranks",
    evaluation_split_by_rank: "job.share() got different data on different ranks",
    two_backward_passes_of_one_call: "call backward() once after each call of the model",
    weights_that_depend_on_the_rank: "ranks differ in model.0.weight",
    embeddings_of_limited_norm: "ranks differ in model.words.weight",
    split_without_a_seed: "the ranks have different training sets, or samplers",
    score_of_rank_0_for_a_plateau: "some ranks called job.epochs(), others job.evaluated()",
    sampler_that_divides_by_itself: "or samplers that yield different ones: job.batches() divides",
    sum_on_rank_0: "some ranks called job.epochs(), others job.sum()",
    sums_of_different_lengths: "the values given to job.sum() are 1 on some ranks, 2 on others",
}
"""The loops, and a part of the error that each of them gets."""
BY_NAME = {loop.__name__: loop for loop in DRIFTING}
