"""Passes in which all ranks compute the same batch, so that they can compare their gradients.

A wrong gradient of one rank is averaged into those of all, so afterwards the replicas are equal.
Only before that do the ranks differ. A probe is no step, and it leaves no trace in the training.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ddp_trainer.collectives.shard_assignment import ShardAssignment
from ddp_trainer.data.loading import Loading
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.library.formation import Formation
from ddp_trainer.library.script_collectives import ScriptCollectives
from ddp_trainer.library.steps.attempt import NO_STEP, Attempt
from ddp_trainer.library.steps.net import Exchange
from ddp_trainer.run.buffers import Copies
from ddp_trainer.run.fingerprint import sum_of_bits
from ddp_trainer.run.seeds import kept_generators, seed_step
from ddp_trainer.run.train_state import TrainState
from ddp_trainer.telemetry.timing import Phase, StepTimer


def check_probes(device: torch.device, *, is_stream: bool) -> None:
    """Check that all ranks can compute the same gradients.

    Raises:
        ConfigurationError: they cannot; the message says why.
    """
    if is_stream:
        raise ConfigurationError(
            "the loader has an IterableDataset, so a rank cannot read the samples of another one, "
            "as verify_gradients needs: remove verify_gradients, or use a dataset with __getitem__"
        )
    if device.type == "cuda" and not torch.are_deterministic_algorithms_enabled():
        raise ConfigurationError(
            "verify_gradients needs the same bits from each GPU: set --deterministic, or call "
            "torch.use_deterministic_algorithms(True) in your own script"
        )


class Probe(Attempt):
    """A batch of which all ranks compute the gradients; no step is taken with it."""

    def end_pass(
        self,
        run: TrainState,
        timer: StepTimer,
        loss: Tensor | float | None,
        *,
        in_turn: bool = False,
    ) -> None:
        """Note the fingerprint of a pass, and undo its changes of buffers and gradients.

        `in_turn`: the script may still use what the pass computed.
        """
        # Turns of several optimizers add up to one fingerprint.
        self.gradients = fingerprint(run.models, loss) ^ (self.gradients or 0)
        timer.note(Phase.COMPUTE)
        run.passes.take_back(self.before, in_turn=in_turn)


@contextmanager
def probing(
    formation: Formation, script: ScriptCollectives, loading: Loading, *, rank: int, seed: int
) -> Iterator[tuple[Probe, Any]]:
    """Yield a probe and its batch, the next one of `rank`; undo what the block changes.

    A collective: all ranks of the group must begin.
    """
    run, size = formation.run, formation.group.size
    epoch, step, samples = run.position.epoch, run.position.step, run.position.samples
    with undone(run) as before:
        _begin(formation.exchange)
        batch = loading.whole_batch(epoch, samples, rank=rank, world_size=size)
        probe = Probe(
            before=before,
            assignment=ShardAssignment(shards=size, rank=rank, size=size),
            samples=size * loading.batch_size,
            sizes=[loading.batch_size],
            batches=1,
            ends_epoch=False,
            given=1,
        )
        script.come_to("step", step)
        seed_step(seed, rank=rank, step=step, purpose="probe")
        try:
            yield probe, batch
        finally:
            script.come_to("after a step", step)
    if probe.stepped == 0 and probe.turns == 0:
        raise RuntimeError(NO_STEP)


def _begin(exchange: Exchange) -> None:
    """Average no gradients, and give all ranks rank 0's buffers, so that they compute the same."""
    exchange.end_step()
    try:
        exchange.equalise_buffers()
    except Exception as error:
        exchange.note_lost_peer(error)


@contextmanager
def undone(run: TrainState) -> Iterator[Copies]:
    """Undo the block's changes of gradients, buffers and random numbers; begin without gradients.

    Yields the buffers of the beginning.
    """
    buffers, parameters = run.passes.before(), _parameters(run.models)
    before = [parameter.grad for parameter in parameters]
    with kept_generators():
        for parameter in parameters:
            parameter.grad = None
        try:
            yield buffers
        finally:
            run.passes.take_back(buffers)
            put_back(parameters, before)


def put_back(parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor | None]) -> None:
    """Give parameters the gradients that they had before."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient


def fingerprint(models: Iterable[nn.Module], loss: Tensor | float | None) -> int:
    """Return a signed 64-bit fingerprint of the models' gradients and the loss."""
    return sum_of_bits([*_gradients(models), torch.as_tensor(0.0 if loss is None else loss)])


def _gradients(models: Iterable[nn.Module]) -> Iterator[Tensor]:
    for parameter in _parameters(models):
        gradient = parameter.grad
        if gradient is not None and gradient.is_sparse:
            gradient = gradient.coalesce()
            yield gradient.indices()
            yield gradient.values()
        elif gradient is not None:
            yield gradient


def _parameters(models: Iterable[nn.Module]) -> list[nn.Parameter]:
    return [parameter for model in models for parameter in model.parameters()]
