"""All that a run must remember to go on as if it had never stopped.

The same state is what checkpoints hold and what a rank that lags behind or starts anew takes from
another one, so resuming follows one path wherever the state comes from. Random numbers are no
part of it: see `seeds`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ddp_trainer.collectives.shard_assignment import ShardAssignment
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.run.buffers import Copies
from ddp_trainer.run.parts import Parts, move
from ddp_trainer.run.position import Bookmarks, Order, Position
from ddp_trainer.run.updates import SchedulerInterval, Updates
from ddp_trainer.settings.batch import Batch

_logger = logging.getLogger(__name__)


Asked = tuple[int, int, int]
"""Where in the script something was asked."""
BEFORE_TRAINING: Asked = (0, 0, 0)


def before_epoch(epoch: int) -> Asked:
    """Return the place before the first batch of an epoch."""
    return 1, epoch, 0


def after_step(step: int, *, epoch: int) -> Asked:
    """Return the place outside of the loop over batches, after a step."""
    return 2, step, epoch


class TrainState:
    """What changes from step to step, part by part; it outlives broken groups."""

    def __init__(
        self,
        parts: Mapping[str, Any],
        *,
        seed: int,
        device: torch.device,
        scheduler_interval: SchedulerInterval = "step",
        batch: Batch | None = None,
    ) -> None:
        """`parts`: whatever has a state, by its name in the state of the run.

        Models move to the device, unless all of one is there. `scheduler_interval`: what torch's
        schedulers count. `batch`: whose batches make a step; None: those of the ranks that there
        are.

        Raises:
            ConfigurationError: a part cannot be remembered.
        """
        self.batch = batch or Batch()
        self.order = Order(seed=seed, shards=self.batch.shards)
        self.position = Position()
        self.is_fresh = True
        """Whether this holds nothing that another rank could go on from."""
        self.is_torn = False
        """Whether a part of another state has come into this one, and never the rest."""
        self.epoch = 0
        """The epoch that the script is in: the position's, or beyond it where training has ended
        within an epoch."""
        self.bookmarks: Bookmarks | None = None
        """Where the ranks' streams stood at some step before, if they can tell."""
        self.answers: dict[Asked, list[list[float]]] = {}
        """What all ranks were told when they asked each other, by place in the script.

        Since the last step, and what a new rank asks again on its way. A rank may be an epoch
        further than one that still waits for an answer.
        """
        self.score: float | None = None
        """Of the evaluation since the last step, of which more is better."""
        self._before, self._copies = Copies(), Copies()
        self._parts = Parts(parts)
        self.models, self.optimizers = self._parts.models, self._parts.optimizers
        for name, part in self._parts.by_name.items():
            if isinstance(part, nn.Module):
                move(part, device, name=name)
        self._updates = Updates(self._parts, scheduler_interval=scheduler_interval)

    # State.

    def progress(self) -> list[int]:
        """How far this has come, to be compared with how far other ranks have.

        What was answered after a step counts too.
        """
        answers = sum(map(len, self.answers.values()))
        return [self.position.step, self.epoch, self.position.turns, answers]

    def state_dict(self) -> dict[str, Any]:
        """The whole state, in the very tensors that the next step changes.

        The same for everybody who has completed the same step, evaluated or not.
        """
        parts = {name: part.state_dict() for name, part in self._parts.by_name.items()}
        position = self.position.before_evaluation(epoch_length=self.order.samples)
        state = {**parts, "position": asdict(position), "order": asdict(self.order)}
        if self.bookmarks is not None:
            state["bookmarks"] = vars(self.bookmarks)
        return state

    def full_state_dict(self) -> dict[str, Any]:
        """The same with what ranks need that go on together from here, in this very moment."""
        return self.state_dict() | {
            "position": asdict(self.position),
            "epoch": self.epoch,
            "answers": list(self.answers.items()),
            "score": self.score,
        }

    def untrained(self) -> Iterator[Tensor]:
        """Tensors of the models that no gradient changes: buffers, and frozen parameters.

        Something else may change them, as it does an average of weights.
        """
        for model in self.models:
            yield from (each for each in model.parameters() if not each.requires_grad)
            yield from model.buffers()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` or `memory` has told, in the same tensors that the model has now.

        Raises:
            ValueError: it is of a run that cannot go on as this one.
            RuntimeError, KeyError: it is of another model or optimizer.
        """
        self._check(state)
        for name, part in self._parts.by_name.items():
            if name in state:
                part.load_state_dict(state[name])
        for name, value in state["position"].items():
            setattr(self.position, name, value)
        self.order = self._as_begun(Order(**state["order"]))
        self.bookmarks = Bookmarks(**state["bookmarks"]) if "bookmarks" in state else None
        # A checkpoint is of a step, after which nothing was answered yet.
        self.epoch = state.get("epoch", self.position.epoch)
        self.answers = {tuple(place): values for place, values in state.get("answers", [])}
        self.score = state.get("score")
        self.is_torn = False

    def choose_samples(self, samples: int) -> None:
        """The training set has so many.

        Raises:
            ConfigurationError: the run is in the midst of another one, in which positions mean
                something else.
        """
        if self.order.samples not in (0, samples) or self.order.readers > 0:
            had = (
                f"{self.order.samples} samples" if self.order.samples else "no known number of them"
            )
            raise ConfigurationError(
                f"the training set has {samples} samples, and had {had} when this run began: "
                "choose another checkpoint directory to begin anew"
            )
        self.order = replace(self.order, samples=samples, readers=0)

    def choose_streams(self, readers: int) -> None:
        """The training set is what so many ranks read, each a stream of its own.

        Raises:
            ConfigurationError: the run is in the midst of other ones.
        """
        order, begins_epoch = self.order, self.position.samples == 0
        if order.samples > 0 or (order.readers not in (0, readers) and not begins_epoch):
            what = f"{order.readers} streams" if order.readers else f"{order.samples} samples"
            raise ConfigurationError(
                f"this run has trained on a part of {what}, and nobody knows which part of "
                f"{readers} streams that is: let as many ranks go on, or choose another checkpoint "
                "directory to begin anew"
            )
        self.order = replace(order, samples=0, readers=readers)

    def _as_begun(self, order: Order) -> Order:
        shards = self.batch.shards_of(order.shards)
        if shards not in (0, self.batch.shards):
            _logger.info(
                "a step has the batches of %d ranks, as when this training began, not those of %d",
                shards,
                self.batch.shards,
            )
        return replace(order, shards=shards)

    # Steps.

    def shard_assignment(self, *, rank: int, size: int) -> ShardAssignment:
        """What one of so many ranks computes of each step."""
        shards = self.order.shards or size
        return ShardAssignment(shards=shards, rank=rank, size=size, exact=self.batch.exact)

    def take_steps_of(self, ranks: int) -> None:
        """From here on steps are those of so many ranks."""
        for schedule in self._parts.schedules:
            schedule.take_steps_of(ranks)
        if self.order.readers not in (0, ranks):
            self.choose_streams(ranks)

    def buffers(self) -> Iterator[Tensor]:
        """Those of all models."""
        for model in self.models:
            yield from model.buffers()

    def before(self) -> Copies:
        """What `take_back` needs to undo the passes that begin now; until this is called again."""
        self._before.take(self.buffers())
        return self._before

    def copy_buffers(self) -> Copies:
        """The buffers as they are now; until this is called again."""
        self._copies.take(self.buffers())
        return self._copies

    def set_buffers(self, copies: Copies) -> None:
        """Put the buffers back to what they were; no backward pass needs them any more."""
        copies.put_back(self.buffers())

    def put_buffers(self, values: Sequence[Tensor]) -> None:
        """Put others in the place of `buffers`: a backward pass may yet need those."""
        others = dict(zip(self.buffers(), values, strict=True))
        for model in self.models:
            for module in model.modules():
                for name, buffer in module.named_buffers(recurse=False):
                    module._buffers[name] = others[buffer]

    def take_back(self, before: Copies, *, in_turn: bool = False) -> None:
        """Undo what the passes of a step have left that is not taken.

        `in_turn`: what they have computed may go on to be used.
        """
        if in_turn:
            self.put_buffers([value.clone() for value in before.values])
        else:
            self.set_buffers(before)
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self.forget_unscaling()

    def forget_unscaling(self) -> None:
        """The gradients that a script may have unscaled are not those that a step is taken with."""
        self._updates.forget_unscaling()

    def complete_step(
        self, samples: int, *, ends_epoch: bool = False, clip_grad_norm: float | None = None
    ) -> None:
        """Take a step with the averaged gradients of so many samples over all ranks.

        Padding included. The gradients have come. Nothing in here waits for another rank: a run is
        at a boundary between steps whenever a collective fails.
        """
        self._updates.apply(
            self.position, self.optimizers, clip_grad_norm, ends_step=True, score=self.score
        )
        self._advance(samples, ends_epoch=ends_epoch)

    def take_turn(self, optimizer: Optimizer, *, clip_grad_norm: float | None = None) -> None:
        """Step with one of several optimizers, of a step that `complete_turns` completes."""
        self._updates.apply(
            self.position, [optimizer], clip_grad_norm, ends_step=False, score=self.score
        )
        self.position.turns += 1

    def complete_turns(self, samples: int, *, ends_epoch: bool = False) -> None:
        """The script has stepped with all optimizers that it wants to step, on so many samples."""
        self._updates.apply(self.position, [], None, ends_step=True)
        self._advance(samples, ends_epoch=ends_epoch)

    def _advance(self, samples: int, *, ends_epoch: bool) -> None:
        self.position.advance(samples, epoch_length=self.order.samples)
        if ends_epoch:
            self.position.end(epoch_length=self.order.samples)
        kept = BEFORE_TRAINING, before_epoch(self.position.epoch)
        self.answers = {place: given for place, given in self.answers.items() if place in kept}
        self.score = None

    def end_epoch(self) -> None:
        """The script has come to the end of an epoch."""
        self.position.next_epoch()
        self.epoch = self.position.epoch

    def end_training(self, *, epochs: int) -> None:
        """The script has come to the end of its training, perhaps within one of so many epochs."""
        if self.position.is_at_end:
            self.position.next_epoch()
        self.epoch = epochs

    def _check(self, state: Mapping[str, Any]) -> None:
        """See that a state is of a run like this; raises ValueError if not."""
        self._parts.expect(state)
        theirs, samples = Order(**state["order"]), self.order.samples
        if theirs.seed != self.order.seed or samples not in (0, theirs.samples):
            raise ValueError(
                f"it is of a run with seed {theirs.seed} and {theirs.samples} training samples, "
                f"this one has seed {self.order.seed} and {samples or 'as many'}"
            )
        if self.batch.exact and theirs.shards not in (0, self.batch.shards):
            raise ValueError(
                f"it is of a run with {theirs.shards} shards a step: set --logical-shards "
                f"{theirs.shards}"
            )
