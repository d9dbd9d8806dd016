"""Loops that change the batches they receive, or get them in other forms and orders."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from tests.trainer.habits.registry import (
    BATCH,
    SAMPLES,
    Join,
    Models,
    data,
    habit,
    loader,
    loss_of,
    trained,
)


class Named(Dataset[dict[str, Any]]):
    """Samples as dictionaries."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        inputs, targets = data()
        return {"inputs": inputs[index], "labels": int(targets[index]), "name": f"no {index}"}


def named(**settings: Any) -> DataLoader[Any]:
    return DataLoader(Named(), **{"batch_size": BATCH, "shuffle": True} | settings)


@habit
def labels_popped_from_a_dict(join: Join) -> Models:
    def step(net: Any, batch: Any) -> Tensor:
        labels = batch.pop("labels")
        batch.pop("name")
        return loss_of(net(**{"input": batch.pop("inputs")}), labels)

    return trained(join, samples=named(), loss_by=step)


@habit
def batch_that_is_an_encoding(join: Join) -> Models:
    """As in transformers: a UserDict, which the loop extends."""

    def collated(samples: list[Any]) -> UserDict[str, Any]:
        return UserDict(torch.utils.data.default_collate(samples))

    def step(net: Any, batch: Any) -> Tensor:
        assert "twice" not in batch
        batch["twice"] = batch["inputs"] * 2
        return loss_of(net(batch["twice"]), batch.pop("labels"))

    return trained(join, samples=named(collate_fn=collated), loss_by=step)


@habit
def inputs_normalised_in_place(join: Join) -> Models:
    def step(net: Any, batch: Any) -> Tensor:
        inputs, targets = batch
        inputs.sub_(0.5).div_(2)
        return loss_of(net(inputs), targets)

    return trained(join, samples=loader(), loss_by=step)


@habit
def mixup_in_place(join: Join) -> Models:
    def step(net: Any, batch: Any) -> Tensor:
        inputs, targets = batch
        inputs.mul_(0.7).add_(inputs.flip(0), alpha=0.3)
        outputs = net(inputs)
        return 0.7 * loss_of(outputs, targets) + 0.3 * loss_of(outputs, targets.flip(0))

    return trained(join, samples=loader(), loss_by=step)


@habit
def labels_masked_in_place(join: Join) -> Models:
    def step(net: Any, batch: Any) -> Tensor:
        inputs, targets = batch
        targets[::2] = -100
        return loss_of(net(inputs), targets)

    return trained(join, samples=loader(), loss_by=step)


class Pair(NamedTuple):
    inputs: Tensor
    targets: Tensor


@dataclass
class Sheet:
    inputs: Tensor
    targets: Tensor
    notes: list[str]


class Opaque:
    """A batch of a class that nothing is known of, such as a graph."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets


@habit
def named_tuples(join: Join) -> Models:
    samples = loader(collate_fn=lambda some: Pair(*torch.utils.data.default_collate(some)))
    return trained(
        join, samples=samples, loss_by=lambda net, batch: loss_of(net(batch.inputs), batch.targets)
    )


@habit
def dataclass_that_is_changed(join: Join) -> Models:
    def collated(some: list[Any]) -> Sheet:
        inputs, targets = torch.utils.data.default_collate(some)
        return Sheet(inputs, targets, notes=[])

    def step(net: Any, batch: Sheet) -> Tensor:
        assert batch.notes == []
        batch.notes.append("seen")
        batch.inputs = batch.inputs * 2
        return loss_of(net(batch.inputs), batch.targets)

    return trained(join, samples=loader(collate_fn=collated), loss_by=step)


@habit
def objects_of_an_unknown_class(join: Join) -> Models:
    def collated(some: list[Any]) -> Opaque:
        return Opaque(*torch.utils.data.default_collate(some))

    def step(net: Any, batch: Opaque) -> Tensor:
        batch.inputs = batch.inputs * 2
        return loss_of(net(batch.inputs), batch.targets)

    return trained(join, samples=loader(collate_fn=collated), loss_by=step)


@habit
def arrays_changed_in_place(join: Join) -> Models:
    def collated(some: list[Any]) -> tuple[Any, Tensor]:
        inputs, targets = torch.utils.data.default_collate(some)
        return inputs.numpy(), targets

    def step(net: Any, batch: Any) -> Tensor:
        inputs, targets = batch
        np.multiply(inputs, 2, out=inputs)
        return loss_of(net(torch.from_numpy(inputs)), targets)

    return trained(join, samples=loader(collate_fn=collated), loss_by=step)


@habit
def texts_of_different_lengths(join: Join) -> Models:
    def collated(some: list[Any]) -> tuple[list[Tensor], Tensor]:
        return [inputs for inputs, _ in some], torch.stack([targets for _, targets in some])

    def step(net: Any, batch: Any) -> Tensor:
        inputs, targets = batch
        inputs.append(inputs.pop(0))
        return loss_of(net(torch.stack(inputs)), targets)

    return trained(join, samples=loader(collate_fn=collated), loss_by=step)


@habit
def workers_read_the_samples(join: Join) -> Models:
    def step(net: Any, batch: Any) -> Tensor:
        inputs, targets = batch
        inputs.mul_(2)
        return loss_of(net(inputs), targets)

    return trained(join, samples=loader(num_workers=1), loss_by=step)


@habit
def last_batch_dropped(join: Join) -> Models:
    samples = loader(batch_size=5, drop_last=True)
    return trained(join, samples=samples)


@habit
def in_the_order_of_the_data(join: Join) -> Models:
    return trained(join, samples=loader(shuffle=False))


class Curriculum(Sampler[int]):
    """More samples in each epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        return SAMPLES // 2 + 12 * self.epoch


@habit
def curriculum(join: Join) -> Models:
    samples = loader(sampler=Curriculum(), shuffle=None)
    return trained(join, samples=samples, epochs=3)


class ByLength(Sampler[list[int]]):
    """Batches of similar lengths, up to a budget: their number differs by epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(self.epoch)
        batch: list[int] = []
        budget = 24
        for index in torch.randperm(SAMPLES, generator=generator).tolist():
            length = 3 + index * 7 % 11
            if batch and length > budget:
                yield batch
                batch, budget = [], 24
            batch.append(index)
            budget -= length
        yield batch

    def __len__(self) -> int:
        return sum(1 for _ in self)


@habit
def batches_by_length(join: Join) -> Models:
    pairs = loader().dataset
    samples = DataLoader(pairs, batch_sampler=ByLength())
    return trained(join, samples=samples, epochs=3)


@habit
def two_sources_in_one_dataset(join: Join) -> Models:
    """As in semi-supervised training: each sample has one of each source."""

    class Both(Dataset[Any]):
        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> Any:
            inputs, targets = data()
            return inputs[index], targets[index], inputs[-index]

    def step(net: Any, batch: Any) -> Tensor:
        inputs, targets, others = batch
        outputs = net(torch.cat([inputs, others]))
        known, unknown = outputs[: len(inputs)], outputs[len(inputs) :]
        loss: Tensor = loss_of(known, targets) - 0.1 * unknown.softmax(1).square().mean()
        return loss

    return trained(join, samples=DataLoader(Both(), batch_size=BATCH, shuffle=True), loss_by=step)
