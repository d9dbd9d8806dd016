"""The image's entrypoint: starts the ranks of one pod and supervises them.

    python -m ddp_trainer.launch [flags]                      trains a bundled workload
    python -m ddp_trainer.launch [flags] -- python my.py ...  runs any script as every rank

It is process 1 of the container. It forwards signals, reaps orphans and restarts ranks of the
bundled trainer that die; its exit code is the pod's. It never imports torch, so it starts at once
and needs little memory. Only the process that forks the ranks imports torch.

The ranks' output reaches the pod's log in whole lines. If DDP_STATUS_PORT is set, the launcher
serves the status of the training there.
"""

from __future__ import annotations

import signal

if __name__ == "__main__":
    # The kernel discards signals that process 1 neither handles nor blocks. The imports take a
    # large part of a second on a busy node; a signal in that time would be lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})

import contextlib
import errno
import logging
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ddp_trainer.exit_codes import ConfigurationError, ExitCode
from ddp_trainer.launcher.code import PodCode
from ddp_trainer.launcher.lifetime import Lifetime, Standing
from ddp_trainer.launcher.local_checkpoints import LocalCheckpoints
from ddp_trainer.launcher.node_environment import NodeEnvironmentError, with_node_environment
from ddp_trainer.launcher.options import LaunchOptions
from ddp_trainer.launcher.output.rank_output import Output
from ddp_trainer.launcher.ranks.early_check import EarlyCheck
from ddp_trainer.launcher.ranks.localhost_store import LocalhostStore
from ddp_trainer.launcher.ranks.nested_ranks import NestedRanks
from ddp_trainer.launcher.ranks.scripts import Script
from ddp_trainer.launcher.ranks.starters import SCRIPTS, CommandStarter, ForkserverStarter, Starter
from ddp_trainer.launcher.remarks import remark
from ddp_trainer.launcher.supervisor import Supervisor, wake
from ddp_trainer.launcher.verdict import (
    ComesBack,
    PodResult,
    RankEnd,
    RestartBudget,
    judge,
    judge_script,
)
from ddp_trainer.launcher.world.failure_reports import message_of
from ddp_trainer.launcher.world.rank_environment import RankEnvironment
from ddp_trainer.launcher.world.state import GroupState
from ddp_trainer.process_group.assignment import Assignment, AssignmentFile
from ddp_trainer.settings.environment import Placement
from ddp_trainer.system.cores import available_cores
from ddp_trainer.system.logs import end_process, log_to_stdout
from ddp_trainer.telemetry.requests import dumps
from ddp_trainer.telemetry.requests.stacks import HOOK
from ddp_trainer.telemetry.status import STATUS_FILE_VARIABLE, Status, StatusFile, status_file
from ddp_trainer.telemetry.termination import TerminationReport, write_termination_message

if TYPE_CHECKING:
    from ddp_trainer.launcher.memory.pod_memory import PodMemory

_WITHOUT_WARNINGS = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
"""torch logs a C++ stack trace for every lost connection; the trainer logs one line."""
_OF_ONE_RANK = frozenset({"RANK", "LOCAL_RANK"})
"""Variables that each rank gets when it starts."""
_MEMORY_DIRECTORY = "DDP_MEMORY_DIR"
"""As in `memory.volume`, which other launchers do not import."""
_NO_COMMAND = frozenset(
    {errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ENOEXEC, errno.ELOOP, errno.E2BIG}
)
"""Errors after which a command can never be started. Other errors may be temporary: no memory, too
many processes, too many files."""

_logger = logging.getLogger(__name__)


def main(arguments: Sequence[str], env: Mapping[str, str]) -> int:
    """Run this pod to its end, write its termination message and return its exit code."""
    log_to_stdout("launcher")
    try:
        options, output = LaunchOptions.parse(arguments), Output.from_env(env)
        rank_environment, standing = RankEnvironment(env), Standing.from_env(env)
        if rank_environment.initial.node_rank is not None:
            log_to_stdout(f"launcher {rank_environment.initial.node_rank}")
        verdict = _run(options, output, rank_environment, standing, with_node_environment(env))
        report = verdict.report
    except ConfigurationError as error:
        _logger.error("%s", error)
        report = TerminationReport(error=str(error), exit_code=int(ExitCode.CONFIGURATION))
    except NodeEnvironmentError as error:
        report = TerminationReport(error=str(error), exit_code=int(ExitCode.FAILURE))
    if report.exit_code not in (ExitCode.DONE, ExitCode.CONFIGURATION):
        _logger.info(
            "exit code %s%s", report.exit_code, f": {report.headline}" if report.error else ""
        )
    write_termination_message(message_of(report), env)
    return report.exit_code or 0


def _run(
    options: LaunchOptions,
    output: Output,
    rank_environment: RankEnvironment,
    standing: Standing,
    env: Mapping[str, str],
) -> PodResult:
    environment = _environment(rank_environment.placement, env)
    if rank_environment.placement.status_port is None:
        return _supervise(options, output, rank_environment, standing, environment)
    with status_file(env) as path:
        return _supervise(options, output, rank_environment, standing, environment, path)


def _supervise(
    options: LaunchOptions,
    output: Output,
    rank_environment: RankEnvironment,
    standing: Standing,
    environment: Mapping[str, str],
    status_path: Path | None = None,
) -> PodResult:
    placement = rank_environment.placement
    if status_path is not None:
        environment = {**environment, STATUS_FILE_VARIABLE: str(status_path)}
    if options.is_script:  # the bundled trainer is forked from our code and needs no hook
        environment = _of_scripts(environment, status_path)
    found: Mapping[str, str] = {}
    trainjob_token = ""
    may_hold_rank_0 = rank_environment.can_change or placement.node_rank == 0
    if options.is_script and may_hold_rank_0 and status_path is not None:
        found, trainjob_token = _trainjob(placement, environment, status_path)
    world, code = _group_state(rank_environment, environment)
    checks = _checks(environment, status_path, world) if options.is_script else ()
    supervisor = Supervisor(
        _starter(options, environment),
        output,
        lambda: RestartBudget(options.max_restarts, window_seconds=options.restart_window_seconds),
        kill_after_seconds=options.kill_after_seconds,
        silence_seconds=options.silence_seconds,
        can_come_back=ComesBack(is_script=options.is_script),
        script_has_finished=lambda: options.is_script and _says_finished(status_path),
        checks=checks,
    )
    memory: PodMemory | None = None
    served = False
    if placement.status_port is not None and status_path is not None:
        # Import it only after signals are blocked, which its thread inherits. Import it only where
        # it is needed: it takes as much memory as half of the launcher.
        from ddp_trainer.launcher.status_server.server import serve_status  # noqa: PLC0415
        from ddp_trainer.launcher.world.requests import WorldRequests  # noqa: PLC0415

        memory_requests = None
        if environment.get(_MEMORY_DIRECTORY):
            from ddp_trainer.launcher.memory.protocol.requests import MemoryRequests  # noqa: PLC0415
            from ddp_trainer.launcher.memory.thread import start_memory  # noqa: PLC0415

            memory = start_memory(environment, world, rank_environment)
            memory_requests = MemoryRequests(memory, placement)
        served = serve_status(
            placement.status_port,
            status_path,
            supervisor,
            placement,
            trainjob_token=trainjob_token,
            world=WorldRequests(world, rank_environment) if rank_environment.can_change else None,
            memory=memory_requests,
            code=code,
        )
    needs_port = ""
    if rank_environment.initial.node_rank is None:
        needs_port = "a pod without a node rank cannot receive one"
    elif environment.get(_MEMORY_DIRECTORY):
        needs_port = "snapshots in memory cannot be copied"
    if needs_port and not served:
        return _failed(
            f"{needs_port} on port {placement.status_port}: set spec.statusPort to a port that is "
            "free in all pods"
        )

    def verdict_on(ends: Sequence[RankEnd]) -> PodResult:
        own_affair = options.is_script and not any(end.joined for end in ends)
        shown = status_path is not None and dumps.exist(status_path, {end.rank for end in ends})
        verdict = (judge_script if own_affair else judge)(ends).with_dumps(shown)
        port = placement.status_port if served else None
        if verdict.report.error is None:
            return verdict.with_last_status(_status(status_path))
        found = remark(verdict.report.error, own_port=port, environment=environment)
        return verdict.noting("; ".join(filter(None, [found, *(one.remark for one in checks)])))

    lifetime = Lifetime(
        supervisor,
        world,
        rank_environment,
        judge=verdict_on,
        assignment_file=AssignmentFile(status_path) if status_path is not None else None,
        status_file=StatusFile(status_path) if status_path is not None else None,
        of_rank_0=found,
        standing=standing if served and rank_environment.can_change else None,
        code=code,
        begins=partial(_begin, status_path, memory),
    )
    if standing.may_ask(joined=False) and rank_environment.can_change and served:
        from ddp_trainer.launcher.world.leading import Leader  # noqa: PLC0415 - as the server

        Leader(world, placement, pod=standing.pod).start()
    try:
        with output:
            return lifetime.run()
    except OSError as error:
        what = options.command[0] if options.is_script else "the ranks"
        sentence = f"cannot start {what}: {error}"
        if options.is_script and error.errno in _NO_COMMAND:
            raise ConfigurationError(sentence) from error
        return _failed(sentence)


def _group_state(
    rank_environment: RankEnvironment, environment: Mapping[str, str]
) -> tuple[GroupState, PodCode | None]:
    """Return the state of the group as the pod knows it now, and the pod's code."""
    code = PodCode.from_env(environment) if rank_environment.can_change else None
    initial = replace(rank_environment.initial, code=code.id if code else "")
    local = LocalCheckpoints.from_env(environment)
    return GroupState(initial, wake=wake, local_checkpoints=local), code


def _checks(
    environment: Mapping[str, str], status_path: Path | None, world: GroupState
) -> Sequence[EarlyCheck]:
    """Return the checks for mistakes of a script."""
    return (
        NestedRanks(),
        LocalhostStore(
            environment,
            reports_steps=lambda: _status(status_path) is not None,
            say=world.set_remark,
        ),
    )


def _of_scripts(env: Mapping[str, str], status_path: Path | None) -> Mapping[str, str]:
    """Return the variables of a script's ranks, with those for their stacks and dumps.

    A pod of one rank has that rank's variables, too. The process that forks ranks must not, because
    it would do what a rank does when it starts.
    """
    env = {name: value for name, value in env.items() if name not in _OF_ONE_RANK}
    folders = [str(HOOK), env.get("PYTHONPATH", "")]
    written = dumps.prepare(status_path, env) if status_path is not None else {}
    return {**env, "PYTHONPATH": os.pathsep.join(filter(None, folders)), **written}


def _begin(
    status_path: Path | None, memory: PodMemory | None, assignment: Assignment, none_run: bool
) -> None:
    """Forget what earlier ranks left, before ranks have an assignment."""
    if status_path is not None and none_run:
        dumps.clear(status_path)
    if memory is not None:
        memory.begin(assignment, none_run)


def _failed(sentence: str) -> PodResult:
    code = int(ExitCode.FAILURE)
    return PodResult(exit_code=code, report=TerminationReport(error=sentence, exit_code=code))


def _starter(options: LaunchOptions, environment: Mapping[str, str]) -> Starter:
    """Return the way to start ranks: by fork if possible, else as a command."""
    if not options.is_script:
        return ForkserverStarter(options.command, {**_WITHOUT_WARNINGS, **environment})
    script = Script.of(options.command, environment) if options.preload else None
    if script is None:
        return CommandStarter(options.command, environment)
    return ForkserverStarter(script.program, environment, module=SCRIPTS, options=script.options)


def _trainjob(
    placement: Placement, environment: Mapping[str, str], status_path: Path
) -> tuple[Mapping[str, str], str]:
    """Return the variables for a script that reports progress as in a TrainJob, and its token.

    Both are empty if the script reports elsewhere.
    """
    # trainjob imports ssl for a certificate's path; other launchers do not need ssl.
    from ddp_trainer.launcher.status_server import trainjob  # noqa: PLC0415

    token_file = status_path.with_name(f".{status_path.name}.token")
    found = trainjob.environment(environment, placement.status_port or 0, token_file)
    if not found:
        return {}, ""
    try:
        return found, trainjob.write_token(token_file)
    except OSError as error:
        _logger.warning("cannot receive progress reported as in a TrainJob: %s", error)
        return {}, ""


def _says_finished(status_path: Path | None) -> bool:
    """Return True if a script reported that everything is trained and saved."""
    status = _status(status_path)
    return status is not None and (status.finished is True or status.done is True)


def _status(path: Path | None) -> Status | None:
    """Return the status that a script reported; None: none that can be read."""
    with contextlib.suppress(OSError, ValueError):
        return StatusFile(path).read() if path is not None else None
    return None


def _environment(placement: Placement, env: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables that all ranks of this pod share."""
    threads = max(1, available_cores() // placement.local_world_size)
    return {
        "OMP_NUM_THREADS": str(threads),  # without it, torch gives every rank all cores
        # Threads that spin while they wait make pods on shared cores several times slower.
        "OMP_WAIT_POLICY": "PASSIVE",
        "TMPDIR": _temporary_directory(),
        **env,
    }


def _temporary_directory() -> str:
    """Return a directory for torch's temporary files, even if the root is read-only."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return "/dev/shm"  # in memory, and writable in every pod


if __name__ == "__main__":
    end_process(main(sys.argv[1:], os.environ))
