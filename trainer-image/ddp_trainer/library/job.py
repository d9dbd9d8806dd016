"""A training job as one rank's script sees it: data and steps, but no broken groups.

A broken group never reaches the script as an error. The rest of the step is computed in vain. Then
`step` notices that the step cannot be taken, forms a new group, and loads the state of the most
advanced rank. After that, `batches` yields the step's batches again, or continues where the other
ranks are. A rank that replaces a lost one runs the script from its top and continues where the
others are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, SupportsFloat

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.library.answers import Answers
from ddp_trainer.library.checks.calls import Call
from ddp_trainer.library.session import Session
from ddp_trainer.library.steps.evaluation import shared
from ddp_trainer.library.steps.loop import Loop
from ddp_trainer.library.steps.net import Net
from ddp_trainer.library.steps.taking import Steps
from ddp_trainer.library.steps.wrapping import wrapped
from ddp_trainer.process_group.end_of_training import ScriptProgress
from ddp_trainer.run.updates import SchedulerInterval
from ddp_trainer.settings.environment import Environment
from ddp_trainer.settings.options import Options
from ddp_trainer.telemetry.prometheus import is_name
from ddp_trainer.telemetry.termination import RankReport


class Job:
    """A job that `ddp_trainer.join` returns; all ranks call the same methods in the same order."""

    def __init__(self, environment: Environment, options: Options, report: RankReport) -> None:
        """Find this rank's device; no other rank is contacted yet.

        Raises:
            ConfigurationError: this pod lacks GPUs that its ranks need, or the operator and the
                flags require different batches.
        """
        self._session = Session(
            environment,
            options,
            report,
            settle=self._settle,
            when_formed=self._begin_group,
            script_progress=self._script_progress,
        )
        self._answers = Answers(self._session)
        self._steps = Steps(self._session, self._answers)
        self._loop = Loop(self._session, self._answers, self._steps)
        self.device: torch.device = self._session.device
        """Device of this rank and of its models."""
        self.local_rank = self._session.local_rank
        """Rank of this process in its pod."""

    def joined(
        self,
        parts: Mapping[str, Any],
        *,
        scheduler_interval: SchedulerInterval = "step",
        shard_copies: int | None = None,
    ) -> AbstractContextManager[None]:
        """Train together in this block, and leave together when everything is trained and saved.

        `scheduler_interval`: unit in which torch's schedulers count. `shard_copies`: copies of each
        rank's part of a sharded model; None: one if there are several ranks.

        Raises:
            StoppedError: the job must stop, and the state is saved.
            LostPeerError: the other ranks are permanently lost.
            ConfigurationError: the arguments cannot work.
        """
        return self._session.joined(
            parts, scheduler_interval=scheduler_interval, shard_copies=shard_copies
        )

    @property
    def rank(self) -> int:
        """Return the rank of this process in the job; it may change with the next batch."""
        return self._session.rank

    @property
    def world_size(self) -> int:
        """Return the number of processes in the job; it may change with the next batch."""
        return self._session.world_size

    @property
    def is_main(self) -> bool:
        """Return whether this is rank 0, which alone should print and write files.

        With the next batch another process may be rank 0, if pods of the job change places.
        """
        return self.rank == 0

    @property
    def steps_done(self) -> int:
        """Return the number of steps taken since training began."""
        return self._session.run.position.step

    @property
    def weight(self) -> float:
        """Return the present batch's share of the samples of its step, for gradient accumulation.

        The sum of losses multiplied by this is the mean over the step. If a rank computes several
        parts of a step, this is the share of one part; the mean over parts is taken internally, by
        their samples.
        """
        attempt = self._steps.attempt
        return attempt.weight if attempt is not None else 1.0

    def wrap(self, model: nn.Module, **ddp: Any) -> Net:
        """Return the model to call in the loop; its gradients are averaged over all ranks.

        `ddp`: arguments of torch's DistributedDataParallel: bucket_cap_mb, find_unused_parameters,
        static_graph, gradient_as_bucket_view, broadcast_buffers. And gradient_compression: "fp16"
        or "bf16".

        Raises:
            ConfigurationError: the model was not given to `join`, or is wrapped or sharded.
        """
        net = wrapped(self._session, model, ddp)
        self._steps.settle()
        self._session.formation.exchange.wrap(net)
        return net

    def epochs(self, count: int, *, max_steps: int = 0) -> Iterator[int]:
        """Yield the remaining epochs of `count`, numbered from 0, beginning with the present one.

        `max_steps`: training ends after this total number of steps, even within an epoch; 0: no
        limit.
        """
        return self._loop.epochs(count, max_steps=max_steps)

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
        return self._loop.batches(loader, accumulate=accumulate)

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
        return self._steps.step(loss, optimizer, clip_grad_norm)

    def sum(self, *values: float) -> list[float]:
        """Return each value summed over all ranks; a collective.

        Use it after an evaluation, for example for a score and its number of samples. Call it
        between epochs, because a rank that replaces a lost one cannot enter the body of a loop.

        Raises:
            ConfigurationError: it was called within the loop of `batches`.
        """
        self._expect_no_loop("sum")
        self._settle()
        answer, _ = self._answers.sum(Call.SUM, *values)
        return answer

    def share(self, loader: DataLoader[Any]) -> Iterator[Any]:
        """Yield this rank's batches of an evaluation; all ranks together get each sample once.

        Samples stay in order. A rank may get one batch more or less than others; do not call `sum`
        in between. Call this between epochs, like `sum`; it raises the same error.
        """
        self._expect_no_loop("share")
        self._steps.settle()
        yield from shared(self._session, self._answers, loader)

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
        score, session = float(score), self._session
        if session.run.parts.plateaus:
            self._expect_no_loop("evaluated")
            self._steps.settle()
            [score], _ = self._answers.sum(Call.EVALUATED, lambda: score if self.is_main else 0.0)
        self._steps.settle()
        session.run.score = score
        session.progress.evaluated(session.run.position, accuracy=score)
        session.checkpoint_manager.evaluated(session.run, score)

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
        self._session.progress.log(self._session.run.position, numbers)

    def done(self) -> None:
        """Report that the job's result is safe: a pod that is lost from now on has completed.

        Call it on all ranks after the `with ddp_trainer.join(...)` block, before work that need not
        be repeated, such as a last upload. Without it, a pod that is lost before it exits with code
        0 is restarted.

        Raises:
            RuntimeError: it was called within the block.
        """
        self._session.progress.done()

    def _settle(self) -> None:
        self._steps.settle()

    def _begin_group(self) -> None:
        self._steps.begin_group()

    def _script_progress(self) -> ScriptProgress:
        """Return the progress of the script, up to the points that all ranks must reach."""
        step, steps = self._session.run.position.step, self._steps
        asked = self._answers.number_after(step)
        is_trying = steps.attempt is not None
        return step + is_trying, self._answers.epoch, asked, int(steps.duties.is_in_loop)

    def _expect_no_loop(self, method: str) -> None:
        if self._steps.duties.is_in_loop:
            raise ConfigurationError(
                f"job.{method}() was called within the loop of job.batches(), but a rank that "
                "replaces a lost one enters that loop at its next batch: call it between epochs"
            )
