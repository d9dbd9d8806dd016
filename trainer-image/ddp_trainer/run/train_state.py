"""The complete state of a training run, so that it can resume as if it had never stopped.

Checkpoints contain the same state that a rank which is behind, or has restarted, receives from
another one. So resuming works the same way wherever the state comes from. Random numbers are no
part of it: see `seeds`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from ddp_trainer.collectives.shard_assignment import ShardAssignment
from ddp_trainer.run.parts import Parts, move
from ddp_trainer.run.passes import Passes
from ddp_trainer.run.position import Asked, Bookmarks, Order, Position
from ddp_trainer.run.updates import SchedulerInterval, Updates
from ddp_trainer.settings.batch import Batch


class TrainState:
    """The state that changes from step to step, part by part; it outlives broken groups."""

    def __init__(
        self,
        parts: Mapping[str, Any],
        *,
        seed: int,
        device: torch.device,
        scheduler_interval: SchedulerInterval = "step",
        batch: Batch | None = None,
    ) -> None:
        """`parts`: the stateful objects, by their names in the state of the run.

        Models move to the device, unless they are there. `scheduler_interval`: unit in which
        torch's schedulers count. `batch`: how a step is divided into shards; None: one shard for
        each rank.

        Raises:
            ConfigurationError: the state of a part cannot be saved.
        """
        self.batch = batch or Batch()
        self.order = Order(seed=seed, shards=self.batch.shards)
        self.position = Position()
        self.is_fresh = True
        """True if this contains no state from which another rank could continue."""
        self.is_torn = False
        """True if only a part of another rank's state has arrived here."""
        self.epoch = 0
        """The script's epoch: that of the position, or a later one if training ended within an
        epoch."""
        self.bookmarks: Bookmarks | None = None
        """Positions of the ranks' streams at an earlier step, if they can report them."""
        self.answers: dict[Asked, list[list[float]]] = {}
        """Sums that ranks asked each other for, by place in the script.

        Those since the last step, and those that a new rank asks for again. A rank may be an epoch
        further than one that still waits for an answer.
        """
        self.score: float | None = None
        """Score of the evaluation since the last step; higher is better."""
        self.trained_seconds: float | None = 0.0
        """Time that training to this position took, from each group's first step to the last one
        that is kept. By the clock of the rank that took the steps; None: unknown, because an older
        release saved the state.
        """
        self.stepped_at: float | None = None
        """When the last step was completed (monotonic); None: the group has completed none."""
        self.epoch_samples: int | None = None
        """Samples of the present epoch; None: as many as in the first one."""
        self.parts = Parts(parts)
        self.models, self.optimizers = self.parts.models, self.parts.optimizers
        for name, part in self.parts.by_name.items():
            if isinstance(part, nn.Module):
                move(part, device, name=name)
        self.updates = Updates(self, scheduler_interval=scheduler_interval)
        self.passes = Passes(self.parts, self.updates)

    # State.

    def progress(self) -> list[int]:
        """Return the progress of this state, to compare it with that of other ranks.

        Answers after a step count too.
        """
        answers = sum(map(len, self.answers.values()))
        return [self.position.step, self.epoch, self.position.turns, answers]

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state, in the original tensors, which the next step changes.

        It is the same on all ranks that have completed the same step, evaluated or not, apart from
        the time that this took.
        """
        parts = {name: part.state_dict() for name, part in self.parts.by_name.items()}
        position = self.position.before_evaluation(epoch_length=self._epoch_length)
        state = {
            **parts,
            "position": asdict(position),
            "order": asdict(self.order),
            "trained_seconds": self.trained_seconds,
        }
        if self.bookmarks is not None:
            state["bookmarks"] = vars(self.bookmarks)
        return state

    def full_state_dict(self) -> dict[str, Any]:
        """Return the state with what other ranks need to continue from this very moment."""
        return self.state_dict() | self.progress_dict()

    def progress_dict(self) -> dict[str, Any]:
        """Return where the run stands at this very moment, without the states of its parts."""
        return {
            "position": asdict(self.position),
            "order": asdict(self.order),
            "epoch": self.epoch,
            "answers": [(place, list(values)) for place, values in self.answers.items()],
            "score": self.score,
            "trained_seconds": self.trained_seconds,
            "changing": [list(name) for name in self.passes.watch.names()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of `state_dict` or `full_state_dict`, into the model's present tensors.

        Raises:
            ValueError: the state belongs to a run that cannot continue as this one.
            RuntimeError, KeyError: the state belongs to another model or optimizer.
        """
        self._check(state)
        for name, part in self.parts.by_name.items():
            if name in state:
                part.load_state_dict(state[name])
        self.order = Order(**state["order"]).with_shards(self.batch)
        self.bookmarks = Bookmarks(**state["bookmarks"]) if "bookmarks" in state else None
        self.load_progress_dict(state)
        self.is_torn = False

    def load_progress_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of `progress_dict`."""
        for name, value in state["position"].items():
            setattr(self.position, name, value)
        # A checkpoint contains a step without answers after it.
        self.epoch = state.get("epoch", self.position.epoch)
        self.answers = {tuple(place): values for place, values in state.get("answers", [])}
        self.score = state.get("score")
        self.trained_seconds = state.get("trained_seconds")
        self.passes.watch.expect((number, name) for number, name in state.get("changing", ()))
        self._begin_here()

    def choose_samples(self, samples: int) -> None:
        """Set the number of samples in the training set, as the first epoch has them.

        Raises:
            ConfigurationError: the run has begun with another training set, in which positions have
                another meaning.
        """
        self.order = self.order.of_samples(samples)

    def begin_epoch(self, samples: int) -> None:
        """Set the number of samples in the present epoch; 0: unknown."""
        self.epoch_samples = samples

    @property
    def _epoch_length(self) -> int:
        return self.order.samples if self.epoch_samples is None else self.epoch_samples

    def choose_streams(self, readers: int) -> None:
        """Set the number of ranks that each read their own stream.

        Raises:
            ConfigurationError: the run is in the middle of an epoch of other streams or samples.
        """
        self.order = self.order.of_streams(readers, begins_epoch=self.position.samples == 0)

    # Time.

    def begin_group(self) -> None:
        """Note that training continues from here in another group: its first step takes longer."""
        self._begin_here()
        self.passes.watch.expect_no_change()

    def _begin_here(self) -> None:
        """Note that neither the time of the last step nor the schedulers' counts are known."""
        self.stepped_at = None
        self.updates.begin()

    # Steps.

    def shard_assignment(self, *, rank: int, size: int) -> ShardAssignment:
        """Return the share of each step that one of `size` ranks computes."""
        shards = self.order.shards or size
        return ShardAssignment(shards=shards, rank=rank, size=size, exact=self.batch.exact)

    def take_steps_of(self, ranks: int) -> None:
        """Note that steps are those of this number of ranks from now on."""
        for schedule in self.parts.schedules:
            schedule.take_steps_of(ranks)
        if self.order.readers not in (0, ranks):
            self.choose_streams(ranks)

    def buffers(self) -> Iterator[Tensor]:
        """Return the buffers of all models."""
        for model in self.models:
            yield from model.buffers()

    def end_epoch(self) -> None:
        """Note that the script has reached the end of an epoch."""
        self.position.next_epoch()
        self.epoch = self.position.epoch

    def end_training(self, *, epochs: int) -> None:
        """Note that the script has reached the end of training, perhaps within an epoch."""
        if self.position.is_at_end:
            self.position.next_epoch()
        self.epoch = epochs

    def _check(self, state: Mapping[str, Any]) -> None:
        """Check that a state belongs to a run like this; raise ValueError if not."""
        self.parts.expect(state)
        theirs, samples = Order(**state["order"]), self.order.samples
        if theirs.seed != self.order.seed or samples not in (0, theirs.samples):
            raise ValueError(
                f"it is of a run with seed {theirs.seed} and {theirs.samples} training samples, "
                f"this one has seed {self.order.seed} and {samples or 'as many'}"
            )
        if self.batch.exact and theirs.shards not in (0, self.batch.shards):
            raise ValueError(
                f"it belongs to a run with {theirs.shards} shards in a step: set --logical-shards "
                f"{theirs.shards}"
            )
