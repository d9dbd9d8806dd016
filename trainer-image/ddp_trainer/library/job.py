"""A training job as one rank's script sees it: data, steps, and nothing of groups that break.

A group that breaks never reaches the script as an error. What is left of the step is computed for
nothing; `step` finds that it cannot be taken, forms the group anew and takes over the state of the
most advanced rank; then `batches` gives the step's batches once more, or goes on where the others
are. A rank that takes the place of a lost one runs the script from its top, and finds itself where
the others stand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, SupportsFloat

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ddp_trainer.data.loading import Loading
from ddp_trainer.exit_codes import ConfigurationError, MovedError
from ddp_trainer.library.stepping import Stepping
from ddp_trainer.library.steps.evaluation import Parts
from ddp_trainer.library.steps.fixed_batch import check
from ddp_trainer.library.steps.net import Net, options_of
from ddp_trainer.run.parts import check_whole
from ddp_trainer.run.seeds import seed_step
from ddp_trainer.run.stop import is_carried
from ddp_trainer.telemetry.prometheus import is_name

_ASK_SECONDS = 0.25
"""Between questions, within an evaluation, whether a rank was told to stop."""


class Job(Stepping):
    """What `ddp_trainer.join` returns; every rank calls the same methods in the same order."""

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which alone should print and write what all of them know.

        Where pods of the job change places, it may be another process with the next batch.
        """
        return self.rank == 0

    @property
    def steps_done(self) -> int:
        """Steps that were taken since training began."""
        return self._run.position.step

    @property
    def weight(self) -> float:
        """The present batch's part of the samples of its step, which has several to accumulate.

        Of losses that were multiplied by this, the sum is the mean over all of the step. Where a
        rank computes several parts of a step, it is of the samples of one: their mean is taken
        inside, each by its samples.
        """
        return self._attempt.weight if self._attempt is not None else 1.0

    def wrap(self, model: nn.Module, **ddp: Any) -> Net:
        """The model to call in the loop: its gradients come averaged over all ranks.

        `ddp`: arguments of torch's DistributedDataParallel: bucket_cap_mb, find_unused_parameters,
        static_graph, gradient_as_bucket_view, broadcast_buffers. And gradient_compression: "fp16"
        or "bf16".

        Raises:
            ConfigurationError: `join` does not know the model, or it is wrapped already or sharded.
        """
        if isinstance(model, Net) or any(net.module is model for net in self._formation.nets):
            raise ConfigurationError("wrap() got a model that is wrapped already: wrap it once")
        if not any(model is known for known in self._run.models):
            raise ConfigurationError(
                "wrap() got a model that join() does not know: name it there, as in "
                "join(model=model, ...), so that it can be saved and passed on"
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
        self._or_form(lambda: self._formation.wrap(net))
        return net

    def epochs(self, count: int, *, max_steps: int = 0) -> Iterator[int]:
        """The epochs that are left of so many, counted from 0: the one under way comes first.

        `max_steps`: training ends after so many altogether, even within an epoch; 0: it does not.
        """
        run = self._run
        self._length.epochs, self._length.max_steps = count, max_steps
        while run.epoch < count:
            self._epoch = run.epoch
            self._script.come_to("epoch", self._epoch)
            yield self._epoch
            self._settle()
            if run.epoch != self._epoch:  # the others were further
                continue
            if self._length.is_at_limit(run.position):
                run.end_training(epochs=count)
            else:
                run.end_epoch()
        self._epoch = run.epoch
        self._script.come_to("end")

    def batches(self, loader: DataLoader[Any], *, accumulate: int = 1) -> Iterator[Any]:
        """This rank's batches of what is left of the epoch; call `step` after each of them.

        The samples are those of the loader, shuffled if it shuffles, shared out among all ranks as
        DistributedSampler does it. The loader's batch size is that of one rank. `accumulate`: the
        gradients of so many batches make one step; multiply each loss by `weight`. A batch may come
        again, if the step that it belongs to could not be taken. With elastic.batch: global or
        logical shards there are, on each rank, as many batches to a step as it takes the ranks to
        compute those of all shards, none larger than the loader's; `step` takes it after the last
        of them. A loss is then to be the mean over its batch's samples.

        Of an IterableDataset each rank reads what its loader gives, a step ahead; the epoch ends
        when one of them has no batches for another step. Whatever takes the place of a rank reads
        the stream again, from where the last save was if the loader or else the dataset, where no
        workers read it, has state_dict and load_state_dict.

        Raises:
            ConfigurationError: the loader cannot be begun in the middle, or a model is sharded.
        """
        if accumulate < 1:
            raise ConfigurationError(f"batches() got accumulate={accumulate}: make it 1 or more")
        check_whole(*self._run.models)
        self._settle()  # of a loop that was left by `break`
        loading = self._use(loader, accumulate)
        position = self._run.position
        epoch = position.epoch
        self._is_in_loop = True
        try:
            while (
                position.epoch == epoch
                and not position.is_at_end
                and not self._length.is_at_limit(position)
            ):
                before = position.step, position.samples, self.rank, self.world_size
                yield from self._batches_from_here(loading, accumulate)
                after = position.step, position.samples, self.rank, self.world_size
                if after == before:  # too few for a whole batch
                    position.end(epoch_length=loading.samples)
        finally:
            self._is_in_loop = False
            self._script.come_to("after an epoch", epoch)

    def step(
        self,
        loss: Tensor | float | None = None,
        *,
        optimizer: Optimizer | None = None,
        clip_grad_norm: float | None = None,
    ) -> bool:
        """Take a step with the gradients that `backward` has left; False when none was taken.

        None is where more batches are to be accumulated, and where not all gradients have come:
        then the same batches come again. Gradients are scaled down to `clip_grad_norm`, over all
        parameters; optimizers step, then the gradient scaler and schedulers; gradients are cleared.
        `loss` is for the log and the status.

        What else changes with a step, such as an average of the weights, change right after it and
        only if it was taken: `if job.step(loss): average.update_parameters(model)`. It belongs to
        the step then: checkpoints are written, and new ranks get the state, when the script asks
        for the next batch, or calls anything else of the job that takes all ranks. Of several
        optimizers, do that after the last one's turn.

        `optimizer`: this one alone steps, of several that take turns with the same batch, in the
        same order with each; the schedulers step when the next batch is asked for.

        Raises:
            ConfigurationError: the optimizer was not given to `join`.
            RuntimeError: there is no batch to step with.
        """
        attempt = self._attempt
        if attempt is None or (attempt.stepped == attempt.given and attempt.turns == 0):
            raise RuntimeError(
                "job.step() was called without a batch: call it once after each batch of "
                "job.batches()"
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
        """Each value summed over all ranks, the same on all of them; a collective.

        Such as a score and the number of samples that it is of, after an evaluation. Call it
        between epochs: a rank that takes the place of a lost one has no way into a loop's body.

        Raises:
            ConfigurationError: it is called within the loop of `batches`.
        """
        self._expect_no_loop("sum")
        self._settle()
        answer, _ = self._sum(*values)
        return answer

    def share(self, loader: DataLoader[Any]) -> Iterator[Any]:
        """This rank's batches of an evaluation: all ranks together get each sample once, in order.

        Ranks may get one more or less than others; none may call `sum` in between. Call it between
        epochs, as `sum`; it raises the same.
        """
        self._expect_no_loop("share")
        self._settle()
        run, seed = self._run, self._options.seed
        loading = Loading(loader, seed=seed)
        seed_step(seed, rank=self.rank, step=run.position.step, purpose="evaluation")
        [count], begins_here = self._sum(1)
        parts = Parts(loading, int(count))
        if begins_here:
            parts.take(self.rank)
        are_in_place = True
        """Whether each part is with the rank of its number, as in the beginning."""
        # What each rank does follows from the answers alone, so that all ask for the same ones.
        while True:
            yield from parts.batches(seconds=_ASK_SECONDS)
            (votes, leave, unfinished, held), is_new = self._sum(
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
                answer, is_new = self._sum(*(part in parts.held for part in range(int(count))))
                parts.share_out(answer, rank=self.rank if is_new else None, size=self.world_size)
            elif not (stop or leave or unfinished):
                break
        if not parts.held and are_in_place and count == self.world_size and self._is_awaited:
            # The others were done before this rank joined them. What the lost rank of its number
            # had added up is lost: it is missing in the sum that they wait for.
            parts.take(self.rank)
            yield from parts.batches(seconds=math.inf)

    def evaluated(self, score: float) -> None:
        """The models have this score now, of which more is better: an accuracy, as a rule.

        It is for the log and the status. A checkpoint of the best one is kept. Each
        ReduceLROnPlateau that `join` knows takes it with the next epoch's first step: the score
        with mode "max", its negative with mode "min", as in `job.evaluated(-loss)`. For those, all
        ranks need the same score.
        """
        self._settle()
        self._run.score = float(score)
        self._progress.evaluated(self._run.position, accuracy=score)
        self._checkpoint_manager.evaluated(self._run, score)

    def log(self, **metrics: SupportsFloat) -> None:
        """Show numbers of the script's own, by name: in the status, for Prometheus, in the history.

        Those of rank 0 count; of more than 64 names, those that came first.

        Raises:
            ValueError: a name is longer than 63 letters, digits, `_`, `.`, `/` and `-`.
        """
        for name in metrics:
            if not is_name(name):
                raise ValueError(
                    f"job.log() got the name {name!r}: use up to 63 letters, digits, _ . / or -"
                )
        numbers = {name: float(value) for name, value in metrics.items()}
        self._progress.log(self._run.position, numbers)
