"""Joins a script to the other ranks of its job: under the launcher, torchrun, or alone."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, get_args

from torch import distributed as dist
from torch._C._distributed_c10d import TCPStore

from ddp_trainer.devices.hardware import default_backend
from ddp_trainer.exit_codes import ConfigurationError, ExitCode, LeftError
from ddp_trainer.library.endings import meaning, sentence, tell
from ddp_trainer.library.job import Job
from ddp_trainer.library.sharded.device_mesh import release_default_group
from ddp_trainer.process_group.heartbeat import interval
from ddp_trainer.run.updates import SchedulerInterval
from ddp_trainer.settings.environment import Environment
from ddp_trainer.settings.flags import as_arguments
from ddp_trainer.settings.options import Options
from ddp_trainer.settings.training import OptimizationOptions
from ddp_trainer.system.logs import keep_lines_whole
from ddp_trainer.telemetry.requests.stacks import dump_on_signal
from ddp_trainer.telemetry.termination import REPORT_FD_VARIABLE, RankReport

_AGENT_SECONDS = 60.0
"""Time for torchrun's agent to answer; it starts before its workers."""

_logger = logging.getLogger("ddp_trainer")

_joined: set[str] = set()
"""Checkpoint directories of the trainings that this process has ended; empty: of one without."""


@contextmanager
def join(
    *,
    seed: int = Options.seed,
    scheduler_interval: SchedulerInterval = "step",
    checkpoint_dir: str | os.PathLike[str] | None = None,
    checkpoint_every_steps: int = 0,
    checkpoint_every_seconds: float = 300.0,
    checkpoint_timeout_seconds: float = Options.checkpoint_timeout_seconds,
    keep_checkpoints: int = Options.keep_checkpoints,
    stop_within_seconds: float = Options.stop_within_seconds,
    log_every_steps: int = Options.log_every_steps,
    tensorboard: bool = Options.tensorboard,
    rendezvous_timeout_seconds: float = Options.rendezvous_timeout_seconds,
    group_timeout_seconds: float = Options.group_timeout_seconds,
    heartbeat_timeout_seconds: float = Options.heartbeat_timeout_seconds,
    max_reforms: int = Options.max_reforms,
    logical_shards: int | None = None,
    shard_copies: int | None = None,
    verify_replicas: int = Options.verify_replicas,
    verify_gradients: int = Options.verify_gradients,
    skip_nonfinite_steps: int = Options.skip_nonfinite_steps,
    **parts: Any,
) -> Iterator[Job]:
    """Train together with all ranks of the job; each calls this with the same arguments.

    `parts`: all objects that training changes, by names of your choice, such as `model=`,
    `optimizer=`, `scheduler=`, `scaler=`. Each needs `state_dict` and `load_state_dict`.
    Checkpoints contain their states, and a rank that replaces a lost one receives them. When this
    returns, all ranks have the same states. Models move to `job.device`.

    `scheduler_interval`: schedulers count the optimizer's steps ("step") or epochs ("epoch").
    `checkpoint_dir`: directory of the checkpoints; by default the operator's DDP_CHECKPOINT_DIR,
    and without that nothing is saved. `tensorboard`: rank 0 writes event files beside the
    checkpoints; steps trained again replace old values. `logical_shards`: each step is computed
    as this number of ranks would, to the bit, with any number of ranks; None: as the
    present number of ranks would. `shard_copies`: number of ranks that receive each rank's part of
    a sharded model after each step, so that as many ranks can be lost at once; None: one.
    `stop_within_seconds`: how long saving may take once the job must stop; set it below the pod's
    terminationGracePeriodSeconds, which no process in the pod can read. `skip_nonfinite_steps`: so
    many steps in a row can be skipped because a loss is NaN or infinite; pass each loss to
    `job.step`.
    `checkpoint_timeout_seconds`: how long training waits for a save; the last save may take longer.
    The other numbers are those of the bundled trainer's flags of the same names; 0 switches
    `checkpoint_every_...` off.

    Ends the process with exit code 143 when the job must stop and everything is saved, with 75 when
    other ranks are permanently lost, with 71 when this rank's replica or gradients differ from
    those of most ranks, or bits have flipped in its part, and with 64 when the arguments cannot
    work. It ends with 0 when its pod is no longer in the group while the others continue.
    """
    _show_log()
    report: RankReport | None = None
    try:
        release_default_group()
        if dist.is_initialized():
            raise ConfigurationError(
                "join() forms the process group itself: remove init_process_group() from the script"
            )
        if scheduler_interval not in get_args(SchedulerInterval):
            raise ConfigurationError(
                f"join() got scheduler_interval={scheduler_interval!r}: choose step or epoch"
            )
        try:
            options = Options(
                seed=seed,
                checkpoint_every_steps=checkpoint_every_steps,
                checkpoint_every_seconds=checkpoint_every_seconds,
                checkpoint_timeout_seconds=checkpoint_timeout_seconds,
                keep_checkpoints=keep_checkpoints,
                stop_within_seconds=stop_within_seconds,
                log_every_steps=log_every_steps,
                tensorboard=tensorboard,
                rendezvous_timeout_seconds=rendezvous_timeout_seconds,
                group_timeout_seconds=group_timeout_seconds,
                heartbeat_timeout_seconds=heartbeat_timeout_seconds,
                max_reforms=max_reforms,
                verify_replicas=verify_replicas,
                verify_gradients=verify_gradients,
                skip_nonfinite_steps=skip_nonfinite_steps,
                optimization=OptimizationOptions(logical_shards=logical_shards or 0),
            )
        except ConfigurationError as error:
            raise ConfigurationError(f"join(): {as_arguments(str(error))}") from error
        environment = environment_of(os.environ, checkpoint_dir=checkpoint_dir)
        saves_to = str(environment.placement.checkpoint_dir or "")
        _expect_another(saves_to)
        if REPORT_FD_VARIABLE in os.environ:  # a launcher, which may be asked for stacks
            dump_on_signal()
        report = report_of(environment, options)
        job = Job(environment, options, report)
        with job.joined(parts, scheduler_interval=scheduler_interval, shard_copies=shard_copies):
            yield job
        _joined.add(saves_to)
    except Exception as error:
        _end(error, report)
    except BaseException:
        if report is not None:
            report.update(exit_code=int(ExitCode.FAILURE))
        raise


def _expect_another(saves_to: str) -> None:
    """Check that this is the first training of this process, or one that can follow another.

    Raises:
        ConfigurationError: it is not.
    """
    if _joined and "RANK" in os.environ:
        raise ConfigurationError(
            "join() was called again after a training has ended, but the ranks of a job meet only "
            "once: train all parts in one `with` block, or in jobs of their own, such as one for "
            "each fold of a cross-validation"
        )
    if saves_to and saves_to in _joined:
        raise ConfigurationError(
            f"join() was called again with the checkpoints in {saves_to}, which are of a training "
            "that has ended in this process: choose another checkpoint_dir for each training"
        )


def report_of(environment: Environment, options: Options) -> RankReport:
    """Create this rank's report to its launcher, and start its heartbeat."""
    report = RankReport(os.environ, rank=environment.rank)
    if options.heartbeat_timeout_seconds > 0:
        seconds = options.heartbeat_timeout_seconds
        report.start_pulse(interval(seconds), timeout_seconds=seconds)
    return report


def _end(error: Exception, report: RankReport | None) -> None:
    code = tell(report, error) if report is not None else meaning(error)
    has_left = isinstance(error, LeftError)
    if code is ExitCode.DONE and not has_left:
        return
    if code is ExitCode.FAILURE:
        raise error
    expected = has_left or code is ExitCode.STOPPED
    _logger.log(logging.INFO if expected else logging.ERROR, "%s", sentence(error))
    raise SystemExit(int(code)) from error


def environment_of(
    env: Mapping[str, str], *, checkpoint_dir: str | os.PathLike[str] | None = None
) -> Environment:
    """Return this process's environment: from the launcher, from torchrun, or of a single process.

    Raises:
        ConfigurationError: variables are missing or contradict each other.
    """
    directory = str(checkpoint_dir) if checkpoint_dir is not None else env.get("DDP_CHECKPOINT_DIR")
    if "DDP_BACKEND" in env:
        return Environment.from_env({**env, "DDP_CHECKPOINT_DIR": directory or ""})
    known = {
        "DDP_BACKEND": default_backend(),
        "DDP_CHECKPOINT_DIR": directory or "",
        "DDP_JOB_NAME": env.get("TORCHELASTIC_RUN_ID", "ddp"),
    }
    if "RANK" not in env:
        alone = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "1")
        alone |= dict.fromkeys(("RANK", "LOCAL_RANK", "NODE_RANK"), "0")
        alone |= {name: env[name] for name in ("DDP_BATCH", "DDP_BATCH_RANKS") if name in env}
        return Environment.from_env(
            {**known, **alone, "MASTER_ADDR": "localhost", "MASTER_PORT": str(_free_port())}
        )
    if "LOCAL_RANK" not in env or "LOCAL_WORLD_SIZE" not in env:
        raise ConfigurationError(
            "RANK is set, but LOCAL_RANK or LOCAL_WORLD_SIZE is not: start the script with "
            "torchrun, with python -m ddp_trainer.launch -- python ..., or without RANK"
        )
    node_rank = int(env["RANK"]) // int(env["LOCAL_WORLD_SIZE"])
    placed = {**env, **known, "NODE_RANK": str(node_rank)}
    placed.pop("GROUP_WORLD_SIZE", None)
    if env.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        placed["MASTER_PORT"] = str(_port_beside_the_agent(placed))
    return Environment.from_env(placed)


def _port_beside_the_agent(env: Mapping[str, str]) -> int:
    """Return the port of rank 0's store: torchrun's agent listens at MASTER_PORT itself."""
    agent = TCPStore(
        env["MASTER_ADDR"],
        int(env["MASTER_PORT"]),
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=_AGENT_SECONDS),
    )
    key = f"ddp_trainer/port/{env.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    if env["RANK"] == "0":
        agent.set(key, str(_free_port()))
    return int(agent.get(key))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _show_log() -> None:
    """Print the trainer's log, unless the script has configured logging."""
    keep_lines_whole()
    if logging.getLogger().handlers or _logger.handlers:
        return
    handler = logging.StreamHandler(sys.stdout)
    rank = os.environ.get("RANK", "0")
    handler.setFormatter(logging.Formatter(f"%(asctime)s [rank {rank}] %(message)s", "%H:%M:%S"))
    _logger.addHandler(handler)
    _logger.setLevel(logging.INFO)
    _logger.propagate = False
