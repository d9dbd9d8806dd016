"""Takes a job's steps: tries each, batch by batch, until it can be taken."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ddp_trainer.data.loading import Loading, Rest, is_stream
from ddp_trainer.data.sampler import SampleTrace, Share
from ddp_trainer.data.stream import Stream, StreamRest
from ddp_trainer.exit_codes import ConfigurationError, MovedError
from ddp_trainer.library.checks.first_step import FirstStep
from ddp_trainer.library.checks.loss_watch import LossWatch, find
from ddp_trainer.library.checks.probe import Probe, check_probes, probing
from ddp_trainer.library.checks.skipped_steps import must_skip, of_all_ranks
from ddp_trainer.library.session import Session
from ddp_trainer.library.steps import fixed_batch
from ddp_trainer.library.steps.attempt import Attempt
from ddp_trainer.library.steps.turns import check_turn
from ddp_trainer.process_group.end_of_training import ScriptProgress
from ddp_trainer.run.seeds import seed_step
from ddp_trainer.settings.environment import Environment
from ddp_trainer.settings.options import Options
from ddp_trainer.telemetry.termination import RankReport
from ddp_trainer.telemetry.timing import Phase


class Stepping(Session):
    """A session that takes steps."""

    def __init__(self, environment: Environment, options: Options, report: RankReport) -> None:
        """Find this rank's device; no other rank is contacted yet.

        Raises:
            ConfigurationError: this pod lacks GPUs that its ranks need.
        """
        super().__init__(environment, options, report)
        self._trace = SampleTrace(options.trace_samples, rank=self.rank)
        self._loss_watch = LossWatch()
        self._first_step = FirstStep()
        self._attempt: Attempt | None = None
        self._taken: Attempt | None = None
        """The previous step, until `_settle` has completed it."""
        self._is_in_loop = False
        self._ended_loop = False
        """True if the script has read the present epoch to its end."""
        """True while the script is in the loop over an epoch's batches."""

    def _script_progress(self) -> ScriptProgress:
        step, *asked, _ = super()._script_progress()
        return step + (self._attempt is not None), *asked, int(self._is_in_loop)

    def _take_place(self) -> None:
        super()._take_place()
        self._trace.rank = self.rank
        self._first_step.is_due = True

    def _batches_from_here(self, loading: Loading | Stream, accumulate: int) -> Iterator[Any]:
        """Yield batches to the end of the epoch, or until another rank proves to be further."""
        run, place = self._run, (self.rank, self.world_size)
        position = run.position
        rest = loading.rest(
            position.epoch, position.samples, self._shard_assignment, accumulate=accumulate
        )
        while share := rest.next_step():
            step, epoch = run.position.step, run.position.epoch
            while (run.position.step, run.position.epoch) == (step, epoch):
                if (self.rank, self.world_size) != place:  # this rank now has other batches
                    return
                attempt = self._try_step(share, rest)
                while attempt.given < attempt.batches:
                    batch = rest.batch(share, attempt.given)
                    self._prepare_for_batch(attempt)
                    yield batch
                    attempt.expect_step()
                    if attempt.turns > 0:
                        self._end_turns(attempt)
                    if attempt.taken_in is not None:
                        yield from self._probe(loading, attempt)
                        self._settle()
            if (run.position.step, run.position.epoch) != (step + 1, epoch):
                return
            if (self.rank, self.world_size) != place:
                return
            if run.position.is_at_end or self._length.is_at_limit(run.position):
                return

    def _try_step(self, share: Share, rest: Rest | StreamRest) -> Attempt:
        position = self._run.position
        self._formation.verification.keep()
        try:
            begins_epoch = position.samples == 0
            self._formation.votes.begin(
                position.step, begins_epoch=begins_epoch, has_end=rest.has_end
            )
        except Exception as error:
            self._formation.note(error)
        self._trace.write(step=position.step + 1, epoch=position.epoch, samples=share.own)
        self._attempt = Attempt(
            before=self._run.before(),
            assignment=self._shard_assignment,
            samples=share.samples,
            sizes=share.counts,
            ends_epoch=rest.is_at_end,
            own=share.own,
            is_asked=rest.has_end is not None,
        )
        return self._attempt

    def _probe(self, loading: Loading | Stream, taken: Attempt) -> Iterator[Any]:
        """Yield a batch of which all ranks compute the gradients, if it is time; compare them.

        `taken`: the last step. Its votes, saves and the log wait for the comparison, unless the
        script has called another method of the job since.
        """
        try:
            rank = self._rank_to_probe(taken)
        except Exception as error:
            self._taken = None
            self._form(error)
            return
        if rank is None:
            return
        assert isinstance(loading, Loading)
        formation, seed = self._formation, self._options.seed
        with probing(formation, self._script, loading, rank=rank, seed=seed) as (probe, batch):
            self._attempt = probe
            self._timer.note(Phase.DATA)
            try:
                yield batch
            finally:
                self._attempt = None
        taken.gradients = probe.gradients
        if formation.trouble is not None:
            self._taken = None
            self._form(formation.trouble)
        elif self._taken is None:
            self._or_form(lambda: self._verify(taken))

    def _rank_to_probe(self, taken: Attempt) -> int | None:
        """Return the rank whose batch all ranks compute after a step; None: no probe is due."""
        formation = self._formation
        if not self._options.verify_gradients or self._groups != taken.taken_in:
            return None  # a rank that has joined in the meantime computes no probe
        formation.votes.read()
        return formation.verification.rank_to_probe(
            formation.group,
            is_needed=self._saves() or formation.votes.stop or self._is_at_end(taken),
        )

    def _prepare_for_batch(self, attempt: Attempt) -> None:
        number = attempt.give()
        self._script.come_to("step", self._run.position.step)
        slot, batch = attempt.place
        if slot > 0 and batch == 0:
            self._begin_another_part(attempt)
        is_last = number == attempt.batches - 1
        for net in self._formation.nets:
            net.begin_batch(
                slot, weight=attempt.weight_of_part, is_first=number == 0, is_last=is_last
            )
        purpose = "model" if batch == 0 else f"model/{batch}"
        part, step = attempt.assignment.part(slot), self._run.position.step
        seed_step(self._options.seed, rank=part, step=step, purpose=purpose)
        self._timer.note(Phase.DATA)

    def _begin_another_part(self, attempt: Attempt) -> None:
        # Each part begins with the same buffers, and the step keeps those of part 0. That is how it
        # is when each part has its own rank and rank 0's buffers are shared.
        if attempt.buffers is None:
            attempt.buffers = self._run.copy_buffers()
        self._run.set_buffers(attempt.before)

    def _take_step(
        self, attempt: Attempt, loss: Tensor | float | None, clip_grad_norm: float | None
    ) -> bool:
        if loss is None and self._options.skip_nonfinite_steps:
            raise ConfigurationError(
                "skip_nonfinite_steps needs the loss of each batch: pass it, as in job.step(loss)"
            )
        is_last = attempt.stepped_with(loss)
        if isinstance(attempt, Probe):
            attempt.end_pass(self._run, self._timer, loss)
            return False
        if not is_last:
            if not attempt.assignment.is_plain:
                self._run.forget_unscaling()
            return False
        if attempt.buffers is not None:
            self._run.set_buffers(attempt.buffers)
        have_come = (
            self._formation.wait_for_gradients()
            and self._knows_the_end(attempt)
            and self._knows_losses(attempt)
        )
        self._timer.note(Phase.COMMUNICATION)
        self._run.end_passes(are_undone=not have_come)
        if not have_come:
            self._run.take_back(attempt.before)
            self._try_again()
            return False
        samples, ends_epoch = attempt.samples, attempt.ends_epoch
        if attempt.is_skipped:
            self._run.skip_step(attempt.before, samples, ends_epoch=ends_epoch)
        else:
            self._first_step.begin(self._run, self._formation)
            self._run.complete_step(samples, ends_epoch=ends_epoch, clip_grad_norm=clip_grad_norm)
        if not self._formation.is_step_whole():
            self._try_again()
            return False
        self._complete(attempt)
        return not attempt.is_skipped

    def _take_turn(
        self,
        attempt: Attempt,
        optimizer: Optimizer,
        loss: Tensor | float | None,
        clip_grad_norm: float | None,
    ) -> bool:
        run = self._run
        check_turn(
            optimizer,
            run.optimizers,
            is_sharded=self._formation.snapshots is not None,
            batch=self._batch,
            accumulate=self._length.accumulate,
            skips_steps=self._options.skip_nonfinite_steps > 0,
        )
        turn = attempt.take_turn(loss)
        if isinstance(attempt, Probe):
            attempt.end_pass(run, self._timer, loss, in_turn=True)
            return False
        have_come = self._formation.wait_for_gradients(in_turn=True)
        self._timer.note(Phase.COMMUNICATION)
        is_due = turn >= run.position.turns  # otherwise it was taken before the group broke
        run.end_passes(are_undone=not (have_come and is_due))
        if not (have_come and is_due):
            run.take_back(attempt.before, in_turn=True)
            return False
        self._first_step.begin(run, self._formation)
        run.take_turn(optimizer, clip_grad_norm=clip_grad_norm)
        attempt.before = run.before()
        return True

    def _end_turns(self, attempt: Attempt) -> None:
        if self._formation.trouble is not None or not self._knows_the_end(attempt):
            self._try_again()
            return
        self._run.complete_turns(attempt.samples, ends_epoch=attempt.ends_epoch)
        self._complete(attempt)

    def _knows_the_end(self, attempt: Attempt) -> bool:
        """Return whether this rank knows if the epoch ends with the step."""
        if attempt.is_asked:
            try:
                self._formation.votes.read()
            except Exception as error:
                self._formation.note(error)
                return False
            attempt.ends_epoch = self._formation.votes.has_end
        return True

    def _knows_losses(self, attempt: Attempt) -> bool:
        """Return whether this rank knows if all ranks skip the step."""
        most = self._options.skip_nonfinite_steps
        if most > 0:
            position, group = self._run.position, self._formation.group
            try:
                own = find(position.step + 1, group.rank, attempt.told_losses(), attempt.own)
                found = of_all_ranks(own, group)
            except Exception as error:
                self._formation.note(error)
                return False
            attempt.is_skipped = must_skip(
                found, in_a_row=position.skipped, most=most, logs=group.rank == 0
            )
        return True

    def _try_again(self) -> None:
        """Form a new group, in which the step's batches come again."""
        self._attempt = None
        self._script.come_to("after a step", self._run.position.step)
        self._form(self._formation.trouble)

    def _complete(self, attempt: Attempt) -> None:
        attempt.taken_in = self._groups
        self._attempt = None
        self._formation.end_step()
        self._asked.clear()
        self._script.come_to("after a step", self._run.position.step)
        self._script.stepped(epoch=self._run.position.epoch)
        samples = attempt.samples * self._length.samples_a_place
        self._run.count_time()
        self._progress.step(
            self._run.position, samples=samples, trained_seconds=self._run.trained_seconds
        )
        self._profiling.step()
        self._timer.lap(Phase.COMPUTE)
        self._taken = attempt

    def _settle(self) -> None:
        """Complete the previous step: votes, saves and the log.

        Not within the script's call of `step`, because the script's own work after that call, such
        as averaging weights, belongs to the step too.
        """
        if self._attempt is not None:  # a probe of the gradients comes first
            return
        attempt, self._taken = self._taken, None
        if attempt is not None:
            self._timer.lap(Phase.COMPUTE)
            self._or_form(lambda: self._after_step(attempt))

    def _after_step(self, attempt: Attempt) -> None:
        position = self._run.position
        votes, group = self._formation.votes, self._formation.group
        votes.read()
        saves, leaves = self._saves(), votes.stop or votes.leave
        is_last = self._verify(attempt, is_needed=saves or leaves)
        self._first_step.check(self._run, self._formation, self._length.loading)
        if saves or leaves or self._is_at_end(attempt):
            self._formation.equalise_buffers()
            if isinstance(self._length.loading, Stream):
                self._length.loading.bookmark(self._formation.group)
        if (snapshots := self._formation.snapshots) is not None:
            snapshots.take()
            if leaves or is_last:
                snapshots.confirm()
        if saves:
            self._checkpoint_manager.save(self._run)
            self._timer.lap(Phase.CHECKPOINT)
        if not attempt.is_skipped:
            self._loss_watch.note(position.step, attempt.told_losses(), attempt.own)
        if self._progress.wants_interval(position):
            losses, shards = attempt.losses(), attempt.assignment.shards
            seconds = self._progress.interval(
                position, losses, group, shards=shards, watch=self._loss_watch
            )
            votes.pace(seconds)
        if votes.stop:
            self._save_and_stop()
        if votes.leave:
            raise MovedError("the group changes")

    def _verify(self, attempt: Attempt, *, is_needed: bool = False) -> bool:
        """Compare the ranks, if it is time; return whether the script cannot repeat the step."""
        # The script does not return to a step after which it leaves the loop.
        is_last = self._is_at_end(attempt) or not self._is_in_loop
        if self._formation.verification.check(
            self._formation.group,
            gradients=attempt.gradients,
            is_needed=is_needed,
            is_last=is_last,
            may_return=self._is_in_loop,
        ):
            self._timer.lap(Phase.COMMUNICATION)
        return is_last

    def _saves(self) -> bool:
        """Return whether all ranks save after this step, by votes that they have read."""
        is_due = self._checkpoint_manager.is_due(self._run.position.step)
        return self._formation.votes.save or is_due

    def _is_at_end(self, attempt: Attempt) -> bool:
        return attempt.ends_epoch or self._length.is_at_limit(self._run.position)

    def _use(self, loader: DataLoader[Any], accumulate: int) -> Loading | Stream:
        if not self._length.is_of(loader, accumulate):
            if self._options.verify_gradients:
                check_probes(self.device, is_stream=is_stream(loader))
            fixed_batch.check_loader(self._batch, loader)
            loading: Loading | Stream
            if is_stream(loader):
                self._run.choose_streams(readers=self.world_size)
                loading = Stream(loader, self._run, seed=self._options.seed)
            else:
                loading = Loading(loader, seed=self._options.seed)
                self._run.choose_samples(loading.samples)
            self._length.choose(loader, loading, accumulate)
            self._first_step.is_due = True
            self._tell_progress()
        assert self._length.loading is not None
        return self._length.loading
