"""A training job as one rank's script sees it: data and steps, but no broken groups.

A broken group never reaches the script as an error. The rest of the step is computed in vain. Then
`step` notices that the step cannot be taken, forms a new group, and loads the state of the most
advanced rank. After that, `batches` yields the step's batches again, or continues where the other
ranks are. A rank that replaces a lost one runs the script from its top and continues where the
others are.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from typing import Any, SupportsFloat

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ddp_trainer.data.loading import Loading
from ddp_trainer.exit_codes import ConfigurationError, MovedError
from ddp_trainer.library.checks.calls import Call
from ddp_trainer.library.checks.ownership import check_ownership
from ddp_trainer.library.stepping import Stepping
from ddp_trainer.library.steps.evaluation import Parts
from ddp_trainer.library.steps.fixed_batch import check
from ddp_trainer.library.steps.net import Net, options_of
from ddp_trainer.run.parts import check_whole
from ddp_trainer.run.seeds import seed_step
from ddp_trainer.run.stop import is_carried
from ddp_trainer.telemetry.prometheus import is_name

_ASK_SECONDS = 0.25
"""During an evaluation, time between votes on whether to stop."""

_logger = logging.getLogger(__name__)


class Job(Stepping):
    """A job that `ddp_trainer.join` returns; all ranks call the same methods in the same order."""

    @property
    def is_main(self) -> bool:
        """Return whether this is rank 0, which alone should print and write files.

        With the next batch another process may be rank 0, if pods of the job change places.
        """
        return self.rank == 0

    @property
    def steps_done(self) -> int:
        """Return the number of steps taken since training began."""
        return self._run.position.step

    @property
    def weight(self) -> float:
        """Return the present batch's share of the samples of its step, for gradient accumulation.

        The sum of losses multiplied by this is the mean over the step. If a rank computes several
        parts of a step, this is the share of one part; the mean over parts is taken internally, by
        their samples.
        """
        return self._attempt.weight if self._attempt is not None else 1.0

    def wrap(self, model: nn.Module, **ddp: Any) -> Net:
        """Return the model to call in the loop; its gradients are averaged over all ranks.

        `ddp`: arguments of torch's DistributedDataParallel: bucket_cap_mb, find_unused_parameters,
        static_graph, gradient_as_bucket_view, broadcast_buffers. And gradient_compression: "fp16"
        or "bf16".

        Raises:
            ConfigurationError: the model was not given to `join`, or is wrapped or sharded.
        """
        if isinstance(model, Net) or any(net.module is model for net in self._formation.nets):
            raise ConfigurationError("wrap() got a model that is wrapped already: wrap it once")
        if not any(model is known for known in self._run.models):
            raise ConfigurationError(
                "wrap() got a model that join() does not know: name it there, as in "
                "join(model=model, ...), so that it can be saved and restored"
            )
        if self._formation.snapshots is not None:
            raise ConfigurationError(
                "wrap() got a model that fully_shard() has sharded: call it directly"
            )
        check_whole(model)
        options = options_of(ddp)
        check(self._batch, model, options)
        net = Net(
            model,
            options,
            on_trouble=self._formation.note,
            before_waiting=self._timer.lap_before_waiting,
        )
        self._settle()
        self._formation.wrap(net)
        return net

    def epochs(self, count: int, *, max_steps: int = 0) -> Iterator[int]:
        """Yield the remaining epochs of `count`, numbered from 0, beginning with the present one.

        `max_steps`: training ends after this total number of steps, even within an epoch; 0: no
        limit.
        """
        run = self._run
        self._length.epochs, self._length.max_steps = count, max_steps
        while run.epoch < count:
            self._epoch = run.epoch
            self._script.come_to("epoch", self._epoch)
            self._stop_if_told()
            if run.epoch != self._epoch:  # other ranks were further
                continue
            self._ended_loop = False
            yield self._epoch
            self._settle()
            if run.epoch != self._epoch:  # other ranks were further
                continue
            if self._length.is_at_limit(run.position):
                run.end_training(epochs=count)
            else:
                run.end_epoch()
        self._epoch = run.epoch
        self._script.come_to("end")

    def batches(self, loader: DataLoader[Any], *, accumulate: int = 1) -> Iterator[Any]:
        """Yield this rank's batches for the rest of the epoch; call `step` after each of them.

        The samples are those of the loader, shuffled if it shuffles, divided among all ranks as
        DistributedSampler does. The loader's batch size is that of one rank. `accumulate`: the
        gradients of this number of batches make one step; multiply each loss by `weight`. A batch
        comes again if its step could not be taken. With `verify_gradients`, all ranks now and then
        receive the same batch, and no step is taken with it.

        With elastic.batch: global or logical shards, a step has several batches on each rank, none
        larger than the loader's, until the ranks have computed all shards; `step` takes it after
        the last of them. Each loss must then be the mean over its batch's samples.

        With an IterableDataset, each rank reads its own loader, one step ahead. The epoch ends when
        a rank has no batches for another step. A rank that replaces a lost one reads the stream
        again. It starts at the last save if the loader has state_dict and load_state_dict, or if
        the dataset has them and no workers read it.

        Raises:
            ConfigurationError: the loader cannot start in the middle; a parameter would not be
                trained, or by one rank alone; an option does not allow `accumulate`; or the epoch
                has ended.
        """
        if accumulate < 1:
            raise ConfigurationError(f"batches() got accumulate={accumulate}: make it 1 or more")
        if accumulate > 1 and any(net.has_static_graph for net in self._formation.nets):
            raise ConfigurationError(
                "a static graph cannot accumulate batches, because DistributedDataParallel must "
                "exchange the gradients of the first one: remove --static-graph (static_graph=True "
                "in your own script)"
            )
        if self._formation.snapshots is None:
            check_whole(*self._run.models)
        self._settle()  # after a loop that `break` ended
        self._formation.renew_nets()
        # Passes of a sharded model exchange its parameters, so they are checked in `join`.
        if self._formation.snapshots is None or not self._run.optimizers:
            check_ownership(self._run.parts, [net.module for net in self._formation.nets])
        loading = self._use(loader, accumulate)
        position = self._run.position
        if position.is_at_end and self._ended_loop:
            raise ConfigurationError(
                "job.batches() was called again in an epoch that has ended: loop over "
                "job.epochs(), which begins the next one"
            )
        if position.is_at_end:
            _logger.info(
                "this process continues after the last step of epoch %d, so job.batches() has no "
                "batches of it",
                position.epoch,
            )
        epoch = position.epoch
        self._run.begin_epoch(loading.length_of(epoch))
        self._is_in_loop = True
        try:
            while (
                position.epoch == epoch
                and not position.is_at_end
                and not self._length.is_at_limit(position)
            ):
                before = position.step, position.samples, self._groups
                yield from self._batches_from_here(loading, accumulate)
                after = position.step, position.samples, self._groups
                if after == before:  # too few for a whole batch
                    position.end(epoch_length=loading.length_of(epoch))
        finally:
            self._is_in_loop = False
            self._ended_loop = position.is_at_end
            self._script.come_to("after an epoch", epoch)

    def step(
        self,
        loss: Tensor | float | None = None,
        *,
        optimizer: Optimizer | None = None,
        clip_grad_norm: float | None = None,
    ) -> bool:
        """Take a step with the gradients from `backward`; return False if none was taken.

        No step is taken while more batches must be accumulated, or if gradients of other ranks are
        missing; then the same batches come again. Gradients are clipped to `clip_grad_norm` over
        all parameters. Then the optimizers step, then the gradient scaler and the schedulers, and
        gradients are cleared. `loss` is shown in the log and the status. If it is NaN or infinite,
        `join(skip_nonfinite_steps=...)` skips the step: this returns False, and the next batches
        come.

        Change other things that belong to a step, such as an average of the weights, right after
        it, and only if it was taken: `if job.step(loss): average.update_parameters(model)`. They
        are then part of the step, because checkpoints are written, and new ranks receive the state,
        when the script asks for the next batch or calls another collective method of the job. With
        several optimizers, do this after the last one's turn.

        `optimizer`: only this one steps. Use it for several optimizers that take turns with the
        same batch, always in the same order; the schedulers step when the script asks for the next
        batch.

        Raises:
            ConfigurationError: the optimizer was not given to `join`, or `clip_grad_norm` is not
                above 0.
            RuntimeError: there is no batch to step with.
        """
        attempt = self._attempt
        if attempt is None or (attempt.stepped == attempt.given and attempt.turns == 0):
            raise RuntimeError(
                "job.step() was called without a batch: call it once after each batch of "
                "job.batches()"
            )
        if clip_grad_norm is not None and not clip_grad_norm > 0:
            raise ConfigurationError(
                f"job.step() got clip_grad_norm={clip_grad_norm:g}, which would clear all "
                "gradients: leave it out to clip nothing"
            )
        if optimizer is not None:
            return self._take_turn(attempt, optimizer, loss, clip_grad_norm)
        if attempt.turns > 0:
            raise RuntimeError(
                "job.step() was called for all optimizers after one of them has stepped: name one "
                "in each call, as in job.step(loss, optimizer=optimizer)"
            )
        return self._take_step(attempt, loss, clip_grad_norm)

    def sum(self, *values: float) -> list[float]:
        """Return each value summed over all ranks; a collective.

        Use it after an evaluation, for example for a score and its number of samples. Call it
        between epochs, because a rank that replaces a lost one cannot enter the body of a loop.

        Raises:
            ConfigurationError: it was called within the loop of `batches`.
        """
        self._expect_no_loop("sum")
        self._settle()
        answer, _ = self._sum(Call.SUM, *values)
        return answer

    def share(self, loader: DataLoader[Any]) -> Iterator[Any]:
        """Yield this rank's batches of an evaluation; all ranks together get each sample once.

        Samples stay in order. A rank may get one batch more or less than others; do not call `sum`
        in between. Call this between epochs, like `sum`; it raises the same error.
        """
        self._expect_no_loop("share")
        self._settle()
        run, seed = self._run, self._options.seed
        loading = Loading(loader, seed=seed)
        seed_step(seed, rank=self.rank, step=run.position.step, purpose="evaluation")
        [count], begins_here = self._sum(Call.SHARE, 1, data=loading.fingerprint)
        parts = Parts(loading, int(count))
        if begins_here:
            parts.take(self.rank)
        are_in_place = True
        """True while each part is with the rank of its number, as at the beginning."""
        # What each rank does depends only on these answers, so all ranks ask for the same ones.
        while True:
            yield from parts.batches(seconds=_ASK_SECONDS)
            (votes, leave, unfinished, held), is_new = self._sum(
                Call.SHARE,
                lambda: self._stop.vote(self.world_size),
                self._world.current_assignment.is_outdated,
                not parts.are_done,
                len(parts.held),
            )
            stop = is_carried(votes)
            are_in_place = are_in_place and not leave
            if stop and is_new:
                self._or_form(self._save_and_stop)
            elif leave and is_new:
                self._form(MovedError("the group changes"))
            if held < count:
                are_in_place = False
                holds = [part in parts.held for part in range(int(count))]
                answer, is_new = self._sum(Call.SHARE, *holds)
                parts.share_out(answer, rank=self.rank if is_new else None, size=self.world_size)
            elif not (stop or leave or unfinished):
                break
        if not parts.held and are_in_place and count == self.world_size and self._is_awaited:
            # The others were done before this rank joined. The results of the rank that it replaces
            # are lost, and the others wait for them in their sum.
            parts.take(self.rank)
            yield from parts.batches(seconds=math.inf)

    def evaluated(self, score: float) -> None:
        """Report the models' present score, usually an accuracy; higher is better.

        It is shown in the log and the status, and the checkpoint with the best score is kept. Each
        ReduceLROnPlateau given to `join` receives it with the first step of the next epoch: the
        score with mode "max", its negative with mode "min", as in `job.evaluated(-loss)`. With such
        a scheduler this is a collective, because all ranks use the score of rank 0.

        Raises:
            ConfigurationError: it is a collective, but was called by some ranks, or within the loop
                of `batches`.
        """
        score = float(score)
        if self._run.parts.plateaus:
            self._expect_no_loop("evaluated")
            self._settle()
            [score], _ = self._sum(Call.EVALUATED, lambda: score if self.is_main else 0.0)
        self._settle()
        self._run.score = score
        self._progress.evaluated(self._run.position, accuracy=score)
        self._checkpoint_manager.evaluated(self._run, score)

    def log(self, **metrics: SupportsFloat) -> None:
        """Report the script's own numbers by name: in the status, to Prometheus, in the history.

        Only rank 0's numbers count, and only the first 64 names.

        Raises:
            ValueError: a name has more than 63 characters, or others than letters, digits, `_`,
                `.`, `/` and `-`.
        """
        for name in metrics:
            if not is_name(name):
                raise ValueError(
                    f"job.log() got the name {name!r}: use up to 63 letters, digits, _ . / or -"
                )
        numbers = {name: float(value) for name, value in metrics.items()}
        self._progress.log(self._run.position, numbers)

    def done(self) -> None:
        """Report that the job's result is safe: a pod that is lost from now on has completed.

        Call it on all ranks after the `with ddp_trainer.join(...)` block, before work that need not
        be repeated, such as a last upload. Without it, a pod that is lost before it exits with code
        0 is restarted.

        Raises:
            RuntimeError: it was called within the block.
        """
        self._progress.done()

    def _stop_if_told(self) -> None:
        """Stop before an epoch if all ranks must; an evaluation may have taken long."""
        [votes], is_new = self._sum(Call.EPOCHS, lambda: self._stop.vote(self.world_size))
        if is_new and is_carried(votes):
            self._or_form(self._save_and_stop)

    def _expect_no_loop(self, method: str) -> None:
        if self._is_in_loop:
            raise ConfigurationError(
                f"job.{method}() was called within the loop of job.batches(), but a rank that "
                "replaces a lost one enters that loop at its next batch: call it between epochs"
            )
