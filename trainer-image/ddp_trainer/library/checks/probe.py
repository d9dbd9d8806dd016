"""Passes in which all ranks compute the same batch, so that they can compare their gradients.

A wrong gradient of one rank is averaged into those of all, so afterwards the replicas are equal.
Only before that do the ranks differ. A probe is no step, and it leaves no trace in the training.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ddp_trainer.collectives.shard_assignment import ShardAssignment
from ddp_trainer.data.loading import Loading
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.library.formation import Formation
from ddp_trainer.library.script_collectives import ScriptCollectives
from ddp_trainer.library.steps.attempt import NO_STEP, Attempt
from ddp_trainer.library.steps.shared_buffers import SharedBuffers
from ddp_trainer.run.buffers import Copies
from ddp_trainer.run.fingerprint import sum_of_bits
from ddp_trainer.run.seeds import kept_generators, seed_step
from ddp_trainer.run.train_state import TrainState
from ddp_trainer.telemetry.timing import Phase, StepTimer

if TYPE_CHECKING:
    from ddp_trainer.library.sharded.unreduced import Unreduced


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


@dataclass(kw_only=True)
class Probe(Attempt):
    """A batch of which all ranks compute the gradients; no step is taken with it."""

    unreduced: Unreduced | None = None
    """Reads the gradients of a sharded model."""

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
        own = fingerprint(run.models, loss) if self.unreduced is None else self.unreduced.sum(loss)
        self.gradients = own ^ (self.gradients or 0)
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
    with undone(run) as before, _unreduced(formation, script) as unreduced:
        _begin(formation)
        batch = loading.whole_batch(epoch, samples, rank=rank, world_size=size)
        probe = Probe(
            before=before,
            assignment=ShardAssignment(shards=size, rank=rank, size=size),
            samples=size * loading.batch_size,
            sizes=[loading.batch_size],
            batches=1,
            ends_epoch=False,
            given=1,
            unreduced=unreduced,
        )
        script.come_to("step", step)
        seed_step(seed, rank=rank, step=step, purpose="probe")
        try:
            yield probe, batch
        finally:
            script.come_to("after a step", step)
    if probe.stepped == 0 and probe.turns == 0:
        raise RuntimeError(NO_STEP)


def _begin(formation: Formation) -> None:
    """Average no gradients, and give all ranks rank 0's buffers, so that they compute the same."""
    exchange = formation.exchange
    exchange.end_step()
    try:
        if formation.snapshots is None:
            exchange.equalise_buffers()
        else:  # each rank has its own between the probes
            buffers = SharedBuffers(formation.run.models)
            buffers.agree(formation.group)
            if buffers.shared:
                buffers.share(formation.group)
    except Exception as error:
        exchange.note_lost_peer(error)


@contextmanager
def _unreduced(formation: Formation, script: ScriptCollectives) -> Iterator[Unreduced | None]:
    """Let this rank's gradients of a sharded model be read in a block, and not be reduced."""
    if formation.snapshots is None:
        yield None
        return
    from ddp_trainer.library.sharded.unreduced import Unreduced  # noqa: PLC0415

    unreduced = Unreduced(formation.snapshots.mesh)
    script.omits = unreduced.omits
    try:
        yield unreduced
    finally:
        script.omits = None


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
