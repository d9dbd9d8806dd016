"""A rank's part in its job, from its first group to the last.

A collective fails when a rank is lost. The remaining ranks then form another group, in which all
have the state of the most advanced one.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from ddp_trainer.checkpoints.saver import saver_of
from ddp_trainer.collectives.shard_assignment import ShardAssignment
from ddp_trainer.devices.accelerator import prepare_nccl
from ddp_trainer.exit_codes import ConfigurationError, StoppedError, SupersededError
from ddp_trainer.library.checkpoint_manager import CheckpointManager
from ddp_trainer.library.checks.calls import Call, check_call
from ddp_trainer.library.checks.ownership import check_ownership
from ddp_trainer.library.endings import end_stuck
from ddp_trainer.library.formation import Formation
from ddp_trainer.library.profiling import Profiling
from ddp_trainer.library.progress import Progress, voice_of
from ddp_trainer.library.script_collectives import ScriptCollectives
from ddp_trainer.library.sharded.support import check, mesh_of
from ddp_trainer.library.training_length import TrainingLength
from ddp_trainer.memory.saving import follow
from ddp_trainer.process_group.end_of_training import ScriptProgress
from ddp_trainer.process_group.rendezvous.network import hurry_the_resolver
from ddp_trainer.process_group.world import World
from ddp_trainer.run.stop import StopSignal
from ddp_trainer.run.train_state import BEFORE_TRAINING, Asked, TrainState, after_step, before_epoch
from ddp_trainer.run.updates import SchedulerInterval
from ddp_trainer.settings.environment import Environment
from ddp_trainer.settings.options import Options
from ddp_trainer.telemetry.requests.checkpoint import CheckpointRequest
from ddp_trainer.telemetry.termination import RankReport
from ddp_trainer.telemetry.timing import StepTimer, moments_of

if TYPE_CHECKING:  # its import takes a second, which only sharded models need
    from ddp_trainer.library.sharded.snapshots import Snapshots

_logger = logging.getLogger(__name__)

Parts = Mapping[str, Any]
"""Objects with `state_dict` and `load_state_dict`, by names that the script chose."""


class Session:
    """Forms groups, saves, and ends together with the other ranks; subclasses train."""

    def __init__(self, environment: Environment, options: Options, report: RankReport) -> None:
        """Find this rank's device; no other rank is contacted yet.

        Raises:
            ConfigurationError: this pod lacks GPUs that its ranks need, or the operator and the
                flags require different batches.
        """
        self._options = options
        self._report = report
        self.local_rank = environment.local_rank
        """Rank of this process in its pod."""
        logical_shards = options.optimization.logical_shards
        self._batch = environment.placement.batch.with_logical_shards(logical_shards)
        self._stop = StopSignal(
            within_seconds=options.stop_within_seconds,
            leave_seconds=environment.placement.leave_seconds,
        )
        prepare_nccl()
        hurry_the_resolver()
        self._world = World(
            environment,
            group_timeout_seconds=options.group_timeout_seconds,
            heartbeat_timeout_seconds=options.heartbeat_timeout_seconds,
            device_ids=options.hardware.device_ids,
            on_stuck=partial(end_stuck, report),
            script_progress=self._script_progress,
        )
        self._saver = follow(self._world.current_assignment)
        """Of snapshots in the pod's memory, also for the script's own."""
        self.device = self._world.device
        """Device of this rank and of its models."""
        self._checkpoint_manager = CheckpointManager(
            saver_of(lambda: self._environment.placement, options, self._stop),
            options.checkpoint_every_steps,
            ask_to_save=partial(CheckpointRequest.from_env, os.environ),
        )
        self._timer = StepTimer(moments_of(self.device))
        voice = voice_of(environment.placement, self._timer, event_files=options.tensorboard)
        self._progress = Progress(
            report,
            self._timer,
            self._checkpoint_manager,
            voice,
            log_every_steps=options.log_every_steps,
        )
        self._progress.lead(self.rank == 0)
        self._profiling = Profiling(os.environ, self.rank)
        self._formation: Formation
        self._script: ScriptCollectives
        self._asked: Counter[Asked] = Counter()
        """Number of the run's answers that the script has received, by place."""
        self._is_asking = False
        self._epoch = 0
        """The script's epoch; during its evaluation other ranks may already be in the next one."""
        self._groups = 0
        """Number of groups that were formed."""
        self._length = TrainingLength(shards=self._batch.shards or self.world_size)

    @property
    def rank(self) -> int:
        """Return the rank of this process in the job; it may change with the next batch."""
        return self._environment.rank

    @property
    def world_size(self) -> int:
        """Return the number of processes in the job; it may change with the next batch."""
        return self._environment.placement.world_size

    @property
    def _environment(self) -> Environment:
        return self._world.current_assignment.environment

    @contextmanager
    def joined(
        self,
        parts: Parts,
        *,
        scheduler_interval: SchedulerInterval = "step",
        shard_copies: int | None = None,
    ) -> Iterator[None]:
        """Train together in this block, and leave together when everything is trained and saved.

        `scheduler_interval`: unit in which torch's schedulers count. `shard_copies`: copies of each
        rank's part of a sharded model; None: one if there are several ranks.

        Raises:
            StoppedError: the job must stop, and the state is saved.
            LostPeerError: the other ranks are permanently lost.
            ConfigurationError: the arguments cannot work.
        """
        try:
            run = TrainState(  # first: wrong parts are refused without waiting for other ranks
                parts,
                seed=self._options.seed,
                device=self.device,
                scheduler_interval=scheduler_interval,
                batch=self._batch,
            )
            self._script = ScriptCollectives(self._form, settle=self._settle)
            self._formation = Formation(
                self._world,
                run,
                self._checkpoint_manager,
                self._stop,
                self._script,
                self._options,
                self._snapshots_of(run, shard_copies),
            )
            self._report.update(finished=False)  # tells the launcher that this rank can resume
            try:
                self._form()
                yield
                self._finish()
            except BaseException as error:
                self._leave(error)
                raise
        finally:
            self._stop.ignore_no_more()
            self._profiling.close()
            self._checkpoint_manager.close()
            self._progress.close()

    def _snapshots_of(self, run: TrainState, copies: int | None) -> Snapshots | None:
        mesh = mesh_of(run.models)
        if mesh is None:
            if copies is not None:
                raise ConfigurationError(
                    f"join() got shard_copies={copies}, but no sharded model: remove it"
                )
            return None
        for name in ("verify_replicas", "verify_gradients"):
            if getattr(self._options, name):
                raise ConfigurationError(
                    "join() cannot compare the ranks of a sharded model, which hold different "
                    f"parts: remove {name}"
                )
        copies = min(1, self.world_size - 1) if copies is None else copies
        placement = self._environment.placement
        check(run.parts, placement, is_batch_fixed=self._batch.is_fixed, copies=copies)
        if run.optimizers:
            check_ownership(run.parts, run.models)
        for model in run.models:
            model.register_forward_pre_hook(self._expect_loop)
        from ddp_trainer.library.sharded.saved_parts import SavedParts  # noqa: PLC0415
        from ddp_trainer.library.sharded.snapshots import Snapshots  # noqa: PLC0415

        return Snapshots(run, mesh, SavedParts(self._saver), copies=copies)

    def _expect_loop(self, *_: object) -> None:
        if self._script.place[0] not in ("step", "after a step"):
            raise ConfigurationError(
                "the sharded model was called outside of the loop of job.batches(): evaluate it "
                "within the loop, after job.step(), with as many batches on each rank"
            )

    def _finish(self) -> None:
        """Save the final state, and leave together."""
        self._settle()
        while True:
            try:
                self._formation.group.wait_for_all_to_end()
                self._checkpoint_manager.save_for_certain(self._run, self._formation.group)
                self._progress.finished()
                self._formation.shorten_waits()
                self._formation.group.barrier()
                break
            except Exception as error:
                self._form(error)
        rank, size = self.rank, self.world_size
        self._formation.close()
        self._script.end(rank, size)

    def _leave(self, error: BaseException) -> None:
        # Without a group the ranks cannot agree on a step, so this rank saves its own.
        formation = self._formation
        if isinstance(error, StoppedError) and formation.has_state and not formation.is_open:
            try:
                self._checkpoint_manager.save_alone(
                    formation.run, within_seconds=self._stop.within_seconds
                )
            except SupersededError as refusal:
                _logger.error("nothing is saved: %s", refusal)
            except OSError:
                pass  # logged where it happened
        formation.abandon(error)

    @property
    def _run(self) -> TrainState:
        return self._formation.run

    @property
    def _shard_assignment(self) -> ShardAssignment:
        """Return this rank's part of each step."""
        return self._run.shard_assignment(rank=self.rank, size=self.world_size)

    def _form(self, error: Exception | None = None) -> None:
        self._groups += 1
        self._formation.form(error, when_broken=self._progress.pause)
        self._run.begin_group()
        self._take_place()
        self._tell_progress()

    def _take_place(self) -> None:
        """Adapt to this rank's number and the size of the group."""
        self._report.update(rank=self.rank)
        self._progress.lead(self.rank == 0)
        self._profiling.rank = self.rank
        self._length.shards = self._shard_assignment.shards
        self._run.take_steps_of(self._shard_assignment.shards)

    def _or_form(self, collective: Callable[[], object]) -> None:
        """Run a collective; if it fails, form the group again."""
        try:
            collective()
        except Exception as error:
            self._form(error)

    def _settle(self) -> None:
        """Complete the previous step, if that is not done yet."""

    def _save_and_stop(self) -> None:
        run, total = self._run, self._progress.total_steps
        self._checkpoint_manager.save_and_stop(
            run, self._formation.group, self._stop, total_steps=total
        )

    def _sum(
        self, call: Call, *values: float | Callable[[], float], data: int = 0
    ) -> tuple[list[float], bool]:
        """Return the sum, and whether it is new: not if other ranks had it before this one joined.

        `call`: the method that needs it. Values that may differ in another group are passed as
        functions. `data`: fingerprint of the data that the ranks share.

        Raises:
            ConfigurationError: other ranks called another method, or have other data.
        """
        answers = self._run.answers
        place, is_new = self._asked_at(), False
        self._is_asking = True
        while self._asked[place] == len(answers.setdefault(place, [])):
            try:
                check_call(call, len(values), data, self._formation.group)
                answer = self._formation.group.sum(*map(_value, values))
            except ConfigurationError:
                raise
            except Exception as error:
                self._form(error)  # also brings the answer, if another rank has it
                answers = self._run.answers
            else:
                answers[place].append(answer)
                is_new = True
        self._is_asking = False
        self._asked[place] += 1
        return answers[place][self._asked[place] - 1], is_new

    def _asked_at(self) -> Asked:
        """Return the place of the script; the same on all ranks at that place."""
        kind, _ = self._script.place
        if kind == "start":
            return BEFORE_TRAINING
        if kind == "epoch":
            return before_epoch(self._epoch)
        return after_step(self._run.position.step, epoch=self._epoch)

    @property
    def _is_awaited(self) -> bool:
        """Return whether the others have no more answers at this place than this rank."""
        place = self._asked_at()
        return self._asked[place] == len(self._run.answers.get(place, []))

    def _script_progress(self) -> ScriptProgress:
        """Return the progress of the script, up to the points that all ranks must reach."""
        step = self._run.position.step
        asked = self._asked[after_step(step, epoch=self._epoch)] + self._is_asking
        return step, self._epoch, asked, 0

    def _tell_progress(self) -> None:
        """Report the number of steps as soon as it is known."""
        if self._length.loading is not None:
            position = self._run.position
            self._progress.begin(position, total_steps=self._length.total_steps(position))


def _value(given: float | Callable[[], float]) -> float:
    return float(given() if callable(given) else given)
