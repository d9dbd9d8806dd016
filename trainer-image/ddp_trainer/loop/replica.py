"""The model as one rank of a formed group trains it: forward, backward, averaged gradients."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable

import torch
from torch import Tensor

from ddp_trainer.collectives.compression import stateless_hook
from ddp_trainer.collectives.group import Group
from ddp_trainer.devices.precision import autocast
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.run.run import ModelRun
from ddp_trainer.settings.options import Options

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) → mean over the samples, a scalar."""

_UNUSED_INDICES = re.compile(r"did not receive grad for rank \d+: ([\d ]+)")


class Replica:
    """One of the model's copies, of which each rank has one; made anew for each group."""

    def __init__(self, run: ModelRun, group: Group, loss: Loss, options: Options) -> None:
        self._run = run
        self._loss = loss
        self._group = group
        self._options = options
        hook = run.compression.hook if run.compression is not None else stateless_hook(options.ddp)
        self._model = group.wrap(
            run.model, options.ddp, hook, one_at_a_time=run.compression is not None
        )
        # The first pass of a static graph must not be one without an exchange of gradients.
        begins_alone = options.ddp.static_graph and options.optimization.accumulate_steps > 1
        self._rehearsed = group.size <= 2 and run.compression is None and not begins_alone

    def rehearse(self, inputs: Tensor, targets: Tensor) -> None:
        """One pass that counts for nothing, before the first step in a group.

        DDP lays out its gradient buckets anew after its first pass, and the layout decides in which
        order the ranks' numbers are added. Without a rehearsal, the first step after a group has
        broken would round differently from the same step of a run that nothing happened to. Two
        numbers have one sum, so two ranks need none, unless a compression remembers buckets.
        """
        if self._rehearsed:
            return
        compression = self._run.compression
        quiet = compression.rehearsal() if compression is not None else contextlib.nullcontext()
        size = self._options.batch_size
        with self._run.attempt(rehearsal=True), quiet:
            self._all_passes(inputs[:size], targets[:size])
        self._rehearsed = True

    def backward(
        self,
        inputs: Tensor,
        targets: Tensor,
        *,
        before_waiting: Callable[[Tensor], None] = lambda _: None,
    ) -> Tensor:
        """Leave averaged gradients in the parameters; returns this rank's mean loss.

        They are whole: whatever follows may be queued behind them. A step that fails leaves no
        trace in the run. `before_waiting` gets the loss whose backward pass ends when the gradients
        of all ranks are there.

        Raises:
            BrokenGroupError: they will not come.
            ConfigurationError: the loss does not depend on some parameters, and DDP was not told.
        """
        with self._run.attempt():
            return self._all_passes(inputs, targets, before_waiting)

    def equalise(self) -> None:
        """Give all ranks the same buffers, and whatever else differs between them; a collective.

        Due before what the state of one rank decides for all: a save, an evaluation.
        """
        self._share_buffers()
        if self._run.compression is not None:
            self._group.average(*self._run.compression.left_out())

    def _all_passes(
        self,
        inputs: Tensor,
        targets: Tensor,
        before_waiting: Callable[[Tensor], None] = lambda _: None,
    ) -> Tensor:
        size = self._options.batch_size
        passes = [(inputs, targets)]
        if len(inputs) > size:
            passes = list(zip(torch.split(inputs, size), torch.split(targets, size), strict=True))
        self._run.optimization.optimizer.zero_grad()
        losses: list[Tensor] = []
        for some, their_targets in passes:
            last = len(losses) == len(passes) - 1
            with contextlib.nullcontext() if last else self._model.no_sync():
                with autocast(self._options.optimization.precision, inputs.device):
                    loss = self._loss(self._model(some), their_targets)
                if len(passes) > 1:
                    # The mean over all samples of the step; the last batch may be smaller.
                    loss = loss * (len(some) / len(inputs))
                if last:
                    before_waiting(loss)
                self._run.optimization.scale(loss).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        self._check_all_parameters_took_part()
        if self._options.ddp.broadcast_buffers:
            # After the step rather than before the next: whoever lives has those of rank 0 then.
            self._share_buffers()
        self._group.gate.wait()
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def _share_buffers(self) -> None:
        if self._group.size > 1:
            self._group.share(*self._run.model.buffers())

    def _check_all_parameters_took_part(self) -> None:
        try:
            self._model._check_reducer_finalized()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            indices = _UNUSED_INDICES.search(str(error))
            if indices is None:
                raise
            trained = [
                name
                for name, parameter in self._run.model.named_parameters()
                if parameter.requires_grad
            ]
            names = ", ".join(trained[int(index)] for index in indices[1].split())
            raise ConfigurationError(
                f"the loss of rank {self._group.rank} does not depend on {names}: set "
                "--find-unused-parameters, or freeze them or leave them out of the model"
            ) from error
