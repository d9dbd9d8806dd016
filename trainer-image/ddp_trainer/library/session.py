"""A rank's part in its job, from its first group to the last.

A collective fails when a rank is lost. The remaining ranks then form another group, in which all
have the state of the most advanced one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from ddp_trainer.checkpoints.saver import saver_of
from ddp_trainer.devices.accelerator import prepare_nccl
from ddp_trainer.exit_codes import ConfigurationError, StoppedError, SupersededError
from ddp_trainer.library.checkpoint_manager import CheckpointManager
from ddp_trainer.library.checks.ownership import check_ownership
from ddp_trainer.library.checks.verification import Verification
from ddp_trainer.library.endings import end_stuck
from ddp_trainer.library.formation import Formation
from ddp_trainer.library.profiling import Profiling
from ddp_trainer.library.progress import ProgressWriter, voice_of
from ddp_trainer.library.script_collectives import ScriptCollectives
from ddp_trainer.library.sharded.support import check, mesh_of, part_of
from ddp_trainer.library.training_length import TrainingLength
from ddp_trainer.memory.saving import follow
from ddp_trainer.process_group.end_of_training import ScriptProgress
from ddp_trainer.process_group.rendezvous.network import hurry_the_resolver
from ddp_trainer.process_group.world import GroupFormer
from ddp_trainer.run.stop import StopSignal
from ddp_trainer.run.train_state import TrainState
from ddp_trainer.run.updates import SchedulerInterval
from ddp_trainer.settings.environment import Environment
from ddp_trainer.settings.options import Options
from ddp_trainer.telemetry.requests.checkpoint import CheckpointRequest
from ddp_trainer.telemetry.termination import RankReport
from ddp_trainer.telemetry.timing import timer_of

if TYPE_CHECKING:  # its import takes a second, which only sharded models need
    from ddp_trainer.library.sharded.snapshots import Snapshots

_logger = logging.getLogger(__name__)

Parts = Mapping[str, Any]
"""Objects with `state_dict` and `load_state_dict`, by names that the script chose."""


class Session:
    """Forms groups, saves, and ends together with the other ranks."""

    def __init__(
        self,
        environment: Environment,
        options: Options,
        report: RankReport,
        *,
        settle: Callable[[], None],
        when_formed: Callable[[], None],
        script_progress: Callable[[], ScriptProgress],
    ) -> None:
        """Find this rank's device; no other rank is contacted yet.

        `settle` completes the previous step. `when_formed` is called when a group has formed.
        `script_progress` returns the progress of the script, up to points that all ranks reach.

        Raises:
            ConfigurationError: this pod lacks GPUs that its ranks need, or the operator and the
                flags require different batches.
        """
        self.options = options
        self.report = report
        self._settle = settle
        self._when_formed = when_formed
        self.local_rank = environment.local_rank
        self.rank = environment.rank
        self.world_size = environment.placement.world_size
        logical_shards = options.optimization.logical_shards
        self.batch = environment.placement.batch.with_logical_shards(logical_shards)
        self.stop = StopSignal(
            within_seconds=options.stop_within_seconds,
            leave_seconds=environment.placement.leave_seconds,
        )
        prepare_nccl()
        hurry_the_resolver()
        self.world = GroupFormer(
            environment,
            group_timeout_seconds=options.group_timeout_seconds,
            heartbeat_timeout_seconds=options.heartbeat_timeout_seconds,
            device_ids=options.hardware.device_ids,
            on_stuck=partial(end_stuck, report),
            script_progress=script_progress,
        )
        self._saver = follow(self.world.current_assignment)
        """Of snapshots in the pod's memory, also for the script's own."""
        self.device = self.world.device
        self.checkpoint_manager = CheckpointManager(
            saver_of(lambda: self._environment.placement, options, self.stop),
            options.checkpoint_every_steps,
            ask_to_save=partial(CheckpointRequest.from_env, os.environ),
        )
        self.timer = timer_of(self.device)
        voice = voice_of(
            environment.placement.checkpoint_dir, self.timer, event_files=options.tensorboard
        )
        self.progress = ProgressWriter(
            report,
            self.timer,
            self.checkpoint_manager,
            voice,
            log_every_steps=options.log_every_steps,
        )
        self.progress.lead(self.rank == 0)
        self.profiling = Profiling(os.environ, self.rank)
        self.run: TrainState
        self.formation: Formation
        self.script: ScriptCollectives
        self.groups = 0
        """Number of groups that were formed."""
        self.length = TrainingLength(shards=self.batch.shards or self.world_size)

    @property
    def _environment(self) -> Environment:
        return self.world.current_assignment.environment

    @contextmanager
    def joined(
        self, parts: Parts, *, scheduler_interval: SchedulerInterval, shard_copies: int | None
    ) -> Iterator[None]:
        """Train together in this block; see `Job.joined`."""
        try:
            self.run = TrainState(  # first: wrong parts are refused without other ranks
                parts,
                seed=self.options.seed,
                device=self.device,
                scheduler_interval=scheduler_interval,
                batch=self.batch,
            )
            self.script = ScriptCollectives(self.form, settle=self._settle)
            self.formation = Formation(
                self.world,
                self.run,
                self.checkpoint_manager,
                self.stop,
                self.script,
                self.options,
                *self._sharded(self.run, shard_copies),
            )
            self.report.update(finished=False)  # tells the launcher that this rank can resume
            try:
                self.form()
                yield
                self._finish()
            except BaseException as error:
                self._leave(error)
                raise
        finally:
            self.stop.ignore_no_more()
            self.profiling.close()
            self.checkpoint_manager.close()
            self.progress.close()

    def _sharded(
        self, run: TrainState, copies: int | None
    ) -> tuple[Snapshots, Verification] | tuple[None, None]:
        """Return what a sharded model needs; None: it is not sharded."""
        mesh = mesh_of(run.models)
        if mesh is None:
            if copies is not None:
                raise ConfigurationError(
                    f"join() got shard_copies={copies}, but no sharded model: remove it"
                )
            return None, None
        copies = min(1, self.world_size - 1) if copies is None else copies
        placement = self._environment.placement
        check(
            run.parts,
            placement,
            is_batch_fixed=self.batch.is_fixed,
            copies=copies,
            verify_replicas=self.options.verify_replicas if part_of(mesh).parts == 0 else 0,
        )
        if run.optimizers:
            check_ownership(run.parts, run.models)
        for model in run.models:
            model.register_forward_pre_hook(self._expect_loop)
        from ddp_trainer.library.sharded.assembly import assembled  # noqa: PLC0415

        return assembled(
            run,
            mesh,
            self.script,
            self.options,
            self._saver,
            self.world.current_assignment,
            copies=copies,
        )

    def _expect_loop(self, *_: object) -> None:
        if self.script.place[0] not in ("step", "after a step"):
            raise ConfigurationError(
                "the sharded model was called outside of the loop of job.batches(): evaluate it "
                "within the loop, after job.step(), with as many batches on each rank"
            )

    def _finish(self) -> None:
        """Save the final state, and leave together."""
        self._settle()
        while True:
            try:
                self.formation.group.wait_for_all_to_end()
                self.checkpoint_manager.save_for_certain(self.run, self.formation.group)
                self.progress.finished()
                self.formation.shorten_waits()
                self.formation.group.barrier()
                break
            except Exception as error:
                self.form(error)
        self.formation.close()
        self.script.end(self.rank, self.world_size)

    def _leave(self, error: BaseException) -> None:
        # Without a group the ranks cannot agree on a step, so this rank saves its own.
        formation = self.formation
        if isinstance(error, StoppedError) and formation.has_state and not formation.is_open:
            try:
                self.checkpoint_manager.save_alone(
                    self.run, within_seconds=self.stop.within_seconds
                )
            except SupersededError as refusal:
                _logger.error("nothing is saved: %s", refusal)
            except OSError:
                pass  # logged where it happened
        formation.abandon(error)

    def form(self, error: Exception | None = None) -> None:
        """Form the first group, or another one after this error in the present one."""
        self.groups += 1
        self.formation.form(error, when_broken=self.progress.pause)
        self.run.begin_group()
        self._take_place()
        self._when_formed()
        self.tell_progress()

    def _take_place(self) -> None:
        """Adapt to this rank's number and the size of the group."""
        environment = self._environment
        self.rank, self.world_size = environment.rank, environment.placement.world_size
        self.report.update(rank=self.rank)
        self.progress.lead(self.rank == 0)
        self.profiling.rank = self.rank
        self.assignment = self.run.shard_assignment(rank=self.rank, size=self.world_size)
        """This rank's part of each step."""
        self.length.shards = self.assignment.shards
        self.run.take_steps_of(self.assignment.shards)

    def or_form(self, collective: Callable[[], object]) -> None:
        """Run a collective; if it fails, form the group again."""
        try:
            collective()
        except Exception as error:
            self.form(error)

    def save_and_stop(self) -> None:
        """Save because some rank must stop; see `CheckpointManager.save_and_stop`."""
        run, total = self.run, self.progress.total_steps
        self.checkpoint_manager.save_and_stop(
            run, self.formation.group, self.stop, total_steps=total
        )

    def tell_progress(self) -> None:
        """Report the number of steps as soon as it is known."""
        if self.length.loading is not None:
            position = self.run.position
            self.progress.begin(position, total_steps=self.length.total_steps(position))
