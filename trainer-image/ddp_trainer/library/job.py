"""A training job as one rank's script sees it: data, steps, and nothing of groups that break.

A group that breaks never reaches the script as an error. What is left of the step is computed for
nothing; `step` finds that it cannot be taken, forms the group anew and takes over the state of the
most advanced rank; then `batches` gives the step's batches once more, or goes on where the others
are. A rank that takes the place of a lost one runs the script from its top, and `join` puts it
where the others stand.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader

from ddp_trainer.checkpoints.saver import saver_of
from ddp_trainer.devices.accelerator import prepare_nccl
from ddp_trainer.exit_codes import ConfigurationError, ExitCode, StoppedError
from ddp_trainer.library.endings import end_stuck, tell
from ddp_trainer.library.formation import Formation
from ddp_trainer.library.keeper import Keeper
from ddp_trainer.library.loading import Loading
from ddp_trainer.library.net import Net
from ddp_trainer.library.progress import Progress, publisher_of
from ddp_trainer.library.run import UserRun
from ddp_trainer.membership.heartbeat import interval
from ddp_trainer.membership.network import hurry_the_resolver
from ddp_trainer.membership.world import World
from ddp_trainer.run.run import seed_step
from ddp_trainer.run.stop import StopSignal
from ddp_trainer.settings.environment import Environment
from ddp_trainer.settings.options import Options
from ddp_trainer.settings.training import DDPOptions
from ddp_trainer.telemetry.termination import RankReport
from ddp_trainer.telemetry.timing import Phase, StepTimer, moments_of


@dataclass(kw_only=True)
class _Attempt:
    """A step that is being tried."""

    buffers: list[Tensor]
    """Of the models before it."""
    answered: int
    """What the script had asked for by then."""
    batches: int
    """Of this rank."""
    ends_epoch: bool
    samples: int = 0
    """Of all ranks, in the batches that the script has got."""
    given: int = 0
    """Batches that the script has got."""
    stepped: int = 0
    """Batches after which it has called `step`."""


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """What an epoch consists of."""

    loader: DataLoader[Any]
    loading: Loading
    accumulate: int
    """Batches of a step."""

    def steps_left(self, samples: int, *, world_size: int) -> int:
        """Steps of an epoch of which so many samples are done."""
        batches = self.loading.batches_left(samples, world_size=world_size)
        return math.ceil(batches / self.accumulate)


class Job:
    """What `ddp_trainer.join` returns; every rank calls the same methods in the same order."""

    def __init__(
        self, environment: Environment, options: Options, parts: Mapping[str, Any]
    ) -> None:
        self._options = options
        self.rank = environment.rank
        """Of this process, among all of the job."""
        self.local_rank = environment.local_rank
        """Of this process, in its pod."""
        self.world_size = environment.placement.world_size
        """Processes in the whole job."""
        self._report = RankReport(os.environ, rank=self.rank)
        self._stop = StopSignal(within_seconds=options.stop_within_seconds)
        prepare_nccl()
        hurry_the_resolver()
        world = World(
            environment,
            group_timeout_seconds=options.group_timeout_seconds,
            heartbeat_timeout_seconds=options.heartbeat_timeout_seconds,
            on_stuck=partial(end_stuck, self._report),
        )
        self.device = world.device
        """Where this rank computes, and where its models are."""
        self._run = UserRun(parts, seed=options.seed, device=self.device)
        saver = saver_of(environment, options, self._stop)
        self._keeper = Keeper(saver, options.checkpoint_every_steps, rank=self.rank)
        self._timer = StepTimer(moments_of(self.device))
        self._progress = Progress(
            self._report,
            self._timer,
            self._keeper,
            publisher_of(environment, self._timer),
            log_every_steps=options.log_every_steps,
        )
        self._formation = Formation(world, self._run, self._keeper, self._stop, options)
        self._asked = 0
        """How many of the run's answers the script has got at this place."""
        self._epoch = 0
        """The script's: while it evaluates, other ranks may have gone on to the next one."""
        self._plan: _Plan | None = None
        self._epochs: int | None = None
        self._attempt: _Attempt | None = None

    # What a script calls.

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which alone should print and write what all of them know."""
        return self.rank == 0

    @property
    def steps_done(self) -> int:
        """Steps that were taken since training began."""
        return self._run.position.step

    def wrap(self, model: nn.Module, **ddp: Any) -> Net:
        """The model to call in the loop: its gradients come averaged over all ranks.

        `ddp`: arguments of torch's DistributedDataParallel: bucket_cap_mb, find_unused_parameters,
        static_graph, gradient_as_bucket_view, broadcast_buffers.

        Raises:
            ConfigurationError: the model was not given to `join`, or is wrapped already.
        """
        if isinstance(model, Net) or any(net.module is model for net in self._formation.nets):
            raise ConfigurationError("wrap() got a model that is wrapped already: wrap it once")
        if not any(model is known for known in self._run.models):
            raise ConfigurationError(
                "wrap() got a model that join() does not know: name it there, as in "
                "join(model=model, ...), so that it can be saved and passed on"
            )
        unknown = set(ddp) - set(_DDP_OPTIONS)
        if unknown:
            raise ConfigurationError(
                f"wrap() takes {', '.join(_DDP_OPTIONS)}, not {', '.join(sorted(unknown))}"
            )
        net = Net(
            model,
            DDPOptions(**ddp),
            on_trouble=self._formation.note,
            before_waiting=self._timer.lap_before_waiting,
        )
        try:
            self._formation.wrap(net)
        except Exception as error:
            self._form(error)
        return net

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are left of so many, counted from 0: the one under way comes first."""
        self._epochs = count
        position = self._run.position
        while position.epoch < count:
            self._epoch, self._asked = position.epoch, 0
            yield self._epoch
            if position.epoch == self._epoch:  # else the others were further
                position.next_epoch()
        self._epoch, self._asked = position.epoch, 0

    def batches(self, loader: DataLoader[Any], *, accumulate: int = 1) -> Iterator[Any]:
        """This rank's batches of what is left of the epoch; call `step` after each of them.

        The samples are those of the loader, shuffled if it shuffles, shared out among all ranks as
        DistributedSampler does it. The loader's batch size is that of one rank. `accumulate`: the
        gradients of so many batches make one step; scale the loss by that yourself. A batch may
        come again, if the step that it belongs to could not be taken.

        Raises:
            ConfigurationError: the loader cannot be begun in the middle.
        """
        if accumulate < 1:
            raise ConfigurationError(f"batches() got accumulate={accumulate}: make it 1 or more")
        loading = self._use(loader, accumulate)
        position = self._run.position
        epoch = position.epoch
        while position.epoch == epoch and position.samples < loading.samples:
            before = position.step, position.samples
            yield from self._batches_from_here(loading, accumulate)
            if (position.step, position.samples) == before:  # too few for a whole batch
                position.samples = loading.samples

    def step(self, loss: Tensor | float | None = None) -> bool:
        """Take a step with the gradients that `backward` has left; False when none was taken.

        None is where more batches are to be accumulated, and where not all gradients have come:
        then the same batches come again. Optimizers step, then the gradient scaler and schedulers;
        gradients are cleared. `loss` is for the log and the status.
        """
        attempt = self._attempt
        if attempt is None or attempt.stepped == attempt.given:
            raise RuntimeError(
                "job.step() was called without a batch: call it once after each batch of "
                "job.batches()"
            )
        attempt.stepped += 1
        if attempt.stepped < attempt.batches:
            return False
        self._attempt = None
        have_come = self._formation.gradients_have_come()
        self._timer.lap(Phase.COMMUNICATION)
        if not have_come:
            self._take_back(attempt.buffers)
            self._asked = attempt.answered
            if self._formation.trouble is not None:
                self._form(self._formation.trouble)
            return False
        self._apply()
        self._complete(attempt)
        self._timer.lap(Phase.COMPUTE)
        try:
            self._after_step(loss)
        except Exception as error:
            self._form(error)
        return True

    def sum(self, *values: float) -> list[float]:
        """Each value summed over all ranks, the same on all of them; a collective.

        Such as a score and the number of samples that it is of, after an evaluation.
        """
        place = self._run.position.step, self._epoch
        while self._asked == len(self._run.answers.setdefault(place, [])):
            try:
                answer = self._formation.group.sum(*map(float, values))
            except Exception as error:
                self._form(error)  # with the answer, where another rank has got it
            else:
                self._run.answers[place].append(answer)
        self._asked += 1
        return self._run.answers[place][self._asked - 1]

    def share(self, loader: DataLoader[Any]) -> Iterator[Any]:
        """This rank's batches of an evaluation: all ranks together get each sample once, in order.

        Ranks may get one more or less than others; none may call `sum` in between.
        """
        loading = Loading(loader, seed=self._options.seed)
        return loading.share(rank=self.rank, world_size=self.world_size)

    # What `join` calls.

    def begin(self) -> None:
        """Meet the others, and put the script's objects where they stand."""
        if self._options.heartbeat_timeout_seconds > 0:
            self._report.start_pulse(interval(self._options.heartbeat_timeout_seconds))
        self._report.update(finished=False)  # which tells the launcher that this rank can come back
        self._form()

    def finish(self) -> None:
        """All is trained: save, and leave together."""
        while True:
            try:
                self._keeper.save_for_certain(self._run, self._formation.group)
                self._progress.finished()
                self._formation.be_brief()
                self._formation.group.barrier()
                break
            except Exception as error:
                self._form(error)
        self._formation.close()
        self._close()

    def leave(self, error: BaseException) -> ExitCode:
        """The script has ended with an error; returns what that means."""
        without_group = not self._formation.is_open
        if isinstance(error, StoppedError) and not self._run.is_fresh and without_group:
            with suppress(OSError):  # logged where it happened
                self._keeper.save_alone(self._run, within_seconds=self._stop.within_seconds)
        self._formation.abandon(error)
        if isinstance(error, Exception):
            code = tell(self._report, error)
        else:
            code = ExitCode.FAILURE
            self._report.update(exit_code=int(code))
        self._close()
        return code

    def _form(self, error: Exception | None = None) -> None:
        self._formation.form(error, when_broken=self._progress.pause)
        self._tell_progress()

    # Steps.

    def _batches_from_here(self, loading: Loading, accumulate: int) -> Iterator[Any]:
        """Up to the end of the epoch, or to where another rank has turned out to be further."""
        position = self._run.position
        place = {"rank": self.rank, "world_size": self.world_size}
        left = loading.batches_left(position.samples, world_size=self.world_size)
        source = loading.rest(position.epoch, position.samples, **place)
        while left > 0:
            size = min(accumulate, left)
            left -= size
            batches: list[tuple[int, Any]] = []
            step, epoch = position.step, position.epoch
            while (position.step, position.epoch) == (step, epoch):
                attempt = self._try_step(batches=size, ends_epoch=left == 0)
                for number in range(size):
                    if number == len(batches):
                        batches.append(next(source))
                    count, batch = batches[number]
                    self._give(attempt, number, count)
                    yield batch
                    if attempt.stepped < attempt.given:
                        raise RuntimeError(
                            "the loop asked for another batch without job.step(): call it once "
                            "after each batch"
                        )
            if (position.step, position.epoch) != (step + 1, epoch):
                return

    def _try_step(self, *, batches: int, ends_epoch: bool) -> _Attempt:
        try:
            self._formation.votes.begin(self._run.position.step)
        except Exception as error:
            self._formation.note(error)
        self._attempt = _Attempt(
            buffers=self._copy_buffers(),
            answered=self._asked,
            batches=batches,
            ends_epoch=ends_epoch,
        )
        return self._attempt

    def _give(self, attempt: _Attempt, number: int, count: int) -> None:
        attempt.given += 1
        attempt.samples += count * self.world_size
        for net in self._formation.nets:
            net.exchange(wanted=number == attempt.batches - 1)
        purpose = "model" if number == 0 else f"model/{number}"
        step = self._run.position.step
        seed_step(self._options.seed, rank=self.rank, step=step, purpose=purpose)
        self._timer.lap(Phase.DATA)

    def _complete(self, attempt: _Attempt) -> None:
        run = self._run
        run.position.advance(attempt.samples, epoch_length=run.order.samples)
        if attempt.ends_epoch:
            run.position.samples = run.order.samples
        run.answers.clear()
        self._asked = 0

    def _after_step(self, loss: Tensor | float | None) -> None:
        position = self._run.position
        votes, group = self._formation.votes, self._formation.group
        self._progress.step(position)
        votes.read()
        if votes.save or self._keeper.is_due(position.step):
            self._keeper.save(self._run)
            self._timer.lap(Phase.CHECKPOINT)
        if self._progress.wants_interval(position):
            votes.pace(self._progress.interval(position, _number(loss), group))
        if votes.stop:
            total = self._progress.total_steps
            self._keeper.save_and_stop(self._run, group, self._stop, total_steps=total)

    def _copy_buffers(self) -> list[Tensor]:
        return [buffer.clone() for buffer in self._run.buffers()]

    def _take_back(self, buffers: list[Tensor]) -> None:
        self._run.take_back(buffers)

    def _apply(self) -> None:
        self._run.apply()

    # Epochs.

    def _use(self, loader: DataLoader[Any], accumulate: int) -> Loading:
        if self._plan is None or (self._plan.loader, self._plan.accumulate) != (loader, accumulate):
            loading = Loading(loader, seed=self._options.seed)
            self._run.choose_samples(loading.samples)
            self._plan = _Plan(loader=loader, loading=loading, accumulate=accumulate)
            self._tell_progress()
        return self._plan.loading

    def _tell_progress(self) -> None:
        """Say how many steps there are, as soon as that is known."""
        if self._plan is None:
            return
        position, epochs = self._run.position, self._epochs or self._run.position.epoch + 1
        steps = partial(self._plan.steps_left, world_size=self.world_size)
        whole_epochs = max(epochs - position.epoch - 1, 0)
        self._progress.begin(
            position,
            total_steps=position.step + steps(position.samples) + whole_epochs * steps(0),
            epoch_length=self._run.order.samples,
        )

    def _close(self) -> None:
        self._keeper.close()
        self._progress.close()


_DDP_OPTIONS = (
    "broadcast_buffers",
    "bucket_cap_mb",
    "find_unused_parameters",
    "gradient_as_bucket_view",
    "static_graph",
)


def _number(loss: Tensor | float | None) -> float:
    if isinstance(loss, Tensor):
        return float(loss.detach())
    return math.nan if loss is None else loss
