"""Gives the script its epochs, and the batches of each."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from ddp_trainer.data.loaders import is_stream
from ddp_trainer.data.loading import Loading
from ddp_trainer.data.stream import Stream
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.library.answers import Answers
from ddp_trainer.library.checks.calls import Call
from ddp_trainer.library.checks.ownership import check_ownership
from ddp_trainer.library.checks.probe import check_probes, probing
from ddp_trainer.library.session import Session
from ddp_trainer.library.steps import fixed_batch
from ddp_trainer.library.steps.attempt import NO_STEP, Attempt
from ddp_trainer.library.steps.taking import Steps
from ddp_trainer.run.parts import check_whole
from ddp_trainer.run.seeds import seed_step
from ddp_trainer.run.stop import is_carried
from ddp_trainer.telemetry.timing import Phase

_logger = logging.getLogger(__name__)


class Loop:
    """The loops over epochs and their batches; `Steps` takes the steps."""

    def __init__(self, session: Session, answers: Answers, steps: Steps) -> None:
        self._session = session
        self._answers = answers
        self._steps = steps
        self._has_ended = False
        """True if the script has read the present epoch to its end."""

    def epochs(self, count: int, *, max_steps: int) -> Iterator[int]:
        """Yield the remaining epochs; see `Job.epochs`."""
        session, answers = self._session, self._answers
        run, length = session.run, session.length
        length.epochs, length.max_steps = count, max_steps
        while run.epoch < count:
            answers.epoch = run.epoch
            session.script.come_to("epoch", answers.epoch)
            self._stop_if_told()
            if run.epoch != answers.epoch:  # other ranks were further
                continue
            self._has_ended = False
            yield answers.epoch
            self._steps.settle()
            if run.epoch != answers.epoch:  # other ranks were further
                continue
            if length.is_at_limit(run.position):
                run.end_training(epochs=count)
            else:
                run.end_epoch()
        answers.epoch = run.epoch
        session.script.come_to("end")

    def _stop_if_told(self) -> None:
        """Stop before an epoch if all ranks must; an evaluation may have taken long."""
        session = self._session
        [votes], is_new = self._answers.sum(
            Call.EPOCHS, lambda: session.stop.vote(session.world_size)
        )
        if is_new and is_carried(votes):
            session.or_form(session.save_and_stop)

    def batches(self, loader: DataLoader[Any], *, accumulate: int) -> Iterator[Any]:
        """Yield this rank's batches for the rest of the epoch; see `Job.batches`."""
        session, formation = self._session, self._session.formation
        if accumulate < 1:
            raise ConfigurationError(f"batches() got accumulate={accumulate}: make it 1 or more")
        if accumulate > 1 and any(net.has_static_graph for net in formation.exchange.nets):
            raise ConfigurationError(
                "a static graph cannot accumulate batches, because DistributedDataParallel must "
                "exchange the gradients of the first one: remove --static-graph (static_graph=True "
                "in your own script)"
            )
        if formation.snapshots is None:
            check_whole(*session.run.models)
        self._steps.settle()  # after a loop that `break` ended
        formation.exchange.renew()
        # Passes of a sharded model exchange its parameters, so they are checked in `join`.
        if formation.snapshots is None or not session.run.optimizers:
            check_ownership(session.run.parts, [net.module for net in formation.exchange.nets])
        loading = self._use(loader, accumulate)
        position = session.run.position
        if position.is_at_end and self._has_ended:
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
        session.run.begin_epoch(loading.length_of(epoch))
        self._steps.duties.ask_again()
        self._steps.duties.is_in_loop = True
        try:
            while (
                position.epoch == epoch
                and not position.is_at_end
                and not session.length.is_at_limit(position)
            ):
                before = position.step, position.samples, session.groups
                yield from self._batches_from_here(loading, accumulate)
                after = position.step, position.samples, session.groups
                if after == before:  # too few for a whole batch
                    position.end(epoch_length=loading.length_of(epoch))
        finally:
            self._steps.duties.is_in_loop = False
            self._has_ended = position.is_at_end
            session.script.come_to("after an epoch", epoch)

    def _batches_from_here(self, loading: Loading | Stream, accumulate: int) -> Iterator[Any]:
        """Yield batches to the end of the epoch, or until another rank proves to be further."""
        session, steps = self._session, self._steps
        position, place = session.run.position, (session.rank, session.world_size)
        last_step = session.length.max_steps or math.inf
        rest = loading.rest(
            position.epoch, position.samples, session.assignment, accumulate=accumulate
        )
        while share := rest.next_step():
            step, epoch = position.step, position.epoch
            while position.step == step and position.epoch == epoch:
                if (session.rank, session.world_size) != place:  # this rank now has other batches
                    return
                attempt = steps.begin(share, rest)
                while attempt.given < attempt.batches:
                    batch = rest.batch(share, attempt.given)
                    self._prepare_for_batch(attempt)
                    yield batch
                    if attempt.turns > 0:
                        steps.end_turns(attempt)
                    elif attempt.stepped < attempt.given:
                        raise RuntimeError(NO_STEP)
                    if attempt.taken_in is not None:
                        if session.options.verify_gradients:
                            yield from self._probe(loading, attempt)
                        steps.settle()
            if position.step != step + 1 or position.epoch != epoch:
                return
            if (session.rank, session.world_size) != place:
                return
            if position.is_at_end or position.step >= last_step:
                return

    def _prepare_for_batch(self, attempt: Attempt) -> None:
        session = self._session
        step, script = session.run.position.step, session.script
        is_first, batch = attempt.given == 0, 0
        attempt.given += 1
        if script.only_steps:
            script.place = "step", step
        else:
            script.come_to("step", step)
        if attempt.batches > 1:
            batch = attempt.begin_batch()
            if attempt.slot > 0 and batch == 0:
                self._begin_another_part(attempt)
        is_last = attempt.given == attempt.batches
        is_plain = attempt.assignment.is_plain
        weight = 1.0 if is_plain else attempt.weight_of_part
        for net in session.formation.exchange.nets:
            net.begin_batch(attempt.slot, weight=weight, is_first=is_first, is_last=is_last)
        purpose = "model" if batch == 0 else f"model/{batch}"
        part = session.rank if is_plain else attempt.assignment.part(attempt.slot)
        seed_step(session.options.seed, rank=part, step=step, purpose=purpose)
        session.timer.note(Phase.DATA)

    def _begin_another_part(self, attempt: Attempt) -> None:
        # Each part begins with the same buffers, and the step keeps those of part 0. That is how it
        # is when each part has its own rank and rank 0's buffers are shared.
        run = self._session.run
        if attempt.buffers is None:
            attempt.buffers = run.passes.copy_buffers()
        run.passes.set_buffers(attempt.before)

    def _probe(self, loading: Loading | Stream, taken: Attempt) -> Iterator[Any]:
        """Yield a batch of which all ranks compute the gradients, if it is time; compare them.

        `taken`: the last step. Its votes, saves and the log wait for the comparison, unless the
        script has called another method of the job since.
        """
        session, steps = self._session, self._steps
        session.timer.note(Phase.COMPUTE)
        try:
            rank = self._rank_to_probe(taken)
        except Exception as error:
            steps.taken = None
            session.form(error)
            return
        if rank is None:
            return
        assert isinstance(loading, Loading)
        formation, seed = session.formation, session.options.seed
        with probing(formation, session.script, loading, rank=rank, seed=seed) as (probe, batch):
            steps.attempt = probe
            session.timer.note(Phase.DATA)
            try:
                yield batch
            finally:
                steps.attempt = None
        taken.gradients = probe.gradients
        if formation.exchange.trouble is not None:
            steps.taken = None
            session.form(formation.exchange.trouble)
        elif steps.taken is None:
            session.or_form(lambda: steps.duties.verify(taken))

    def _rank_to_probe(self, taken: Attempt) -> int | None:
        """Return the rank whose batch all ranks compute after a step; None: no probe is due."""
        session, steps = self._session, self._steps
        formation = session.formation
        if session.groups != taken.taken_in:
            return None  # a rank that has joined in the meantime computes no probe
        formation.votes.read()
        return formation.verification.rank_to_probe(
            formation.group,
            is_needed=steps.duties.saves() or formation.votes.stop or steps.duties.is_at_end(taken),
        )

    def _use(self, loader: DataLoader[Any], accumulate: int) -> Loading | Stream:
        session = self._session
        length, seed = session.length, session.options.seed
        if not length.is_of(loader, accumulate):
            if session.options.verify_gradients:
                check_probes(session.device, is_stream=is_stream(loader))
            fixed_batch.check_loader(session.batch, loader)
            loading: Loading | Stream
            if is_stream(loader):
                session.run.choose_streams(readers=session.world_size)
                loading = Stream(loader, session.run, seed=seed)
            else:
                loading = Loading(loader, seed=seed)
                session.run.choose_samples(loading.samples)
            length.choose(loader, loading, accumulate)
            self._steps.duties.first_step.is_due = True
            session.tell_progress()
        assert length.loading is not None
        return length.loading
