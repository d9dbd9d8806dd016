"""The image's entrypoint: starts the ranks of one pod and answers for them.

    python -m ddp_trainer.launch [flags]                      trains a bundled workload
    python -m ddp_trainer.launch [flags] -- python my.py ...  runs any script as every rank

It is process 1 of a container: it forwards signals, reaps what is left behind, and its exit code is
the pod's. It never imports torch, so it is up at once and costs next to nothing.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ddp_trainer.config import Options, Parser, Placement
from ddp_trainer.config import parser as trainer_parser
from ddp_trainer.cores import available_cores
from ddp_trainer.exit_codes import ConfigurationError, ExitCode
from ddp_trainer.logs import log_to_stdout
from ddp_trainer.processes import Supervisor
from ddp_trainer.termination import TerminationReport, write_termination_message
from ddp_trainer.verdict import Verdict, judge, judge_script

_FIRST_BACKOFF_SECONDS = 0.25
_LONGEST_BACKOFF_SECONDS = 10.0

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """What to run, as many times as the pod has ranks."""

    command: Sequence[str]
    is_script: bool
    """A user's own script: its exit codes mean nothing to the launcher."""
    max_reforms: int
    kill_after_seconds: float

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> LaunchPlan:
        """Read the launcher's flags and check the trainer's.

        Raises:
            ConfigurationError: a flag is wrong.
        """
        before, script = _split(arguments)
        values, trainer_flags = _parser().parse_known_args(before)
        for name in ("max_reforms", "kill_after_seconds"):
            if getattr(values, name) < 0:
                raise ConfigurationError(f"--{name.replace('_', '-')} must not be negative")
        if script is None:
            Options.parse(trainer_flags)  # now, rather than in every rank
            command = [sys.executable, "-m", "ddp_trainer", *trainer_flags]
        elif not script:
            raise ConfigurationError("no command after --: say what to run, or leave -- out")
        elif trainer_flags:
            raise ConfigurationError(
                f"{' '.join(trainer_flags)}: a flag of the bundled trainer, which does not run "
                "when a command is given after --; pass flags to the command behind its name"
            )
        else:
            command = script
        return cls(
            command=command,
            is_script=script is not None,
            max_reforms=values.max_reforms,
            kill_after_seconds=values.kill_after_seconds,
        )


def main(arguments: Sequence[str], env: Mapping[str, str]) -> int:
    """Run this pod to its end and write its termination message; returns its exit code."""
    log_to_stdout("launcher")
    try:
        plan = LaunchPlan.parse(arguments)
        placement = Placement.from_env(env)
        log_to_stdout(f"launcher {placement.node_rank}")
        verdict = _run(plan, placement, env)
        report = verdict.report
    except ConfigurationError as error:
        _logger.error("%s", error)
        report = TerminationReport(error=str(error), exit_code=int(ExitCode.CONFIGURATION))
    if report.exit_code not in (ExitCode.DONE, ExitCode.CONFIGURATION):
        _logger.info(
            "exit code %s%s", report.exit_code, f": {report.error}" if report.error else ""
        )
    write_termination_message(report, env)
    return report.exit_code or 0


def _run(plan: LaunchPlan, placement: Placement, env: Mapping[str, str]) -> Verdict:
    """Run the ranks; and again, while all that happens to them is that peers leave."""
    supervisor = Supervisor(kill_after_seconds=plan.kill_after_seconds)
    environments = _rank_environments(placement, env)
    known = TerminationReport()
    reforms = 0
    while True:
        try:
            ends = supervisor.run(plan.command, environments)
        except OSError as error:
            raise ConfigurationError(f"cannot start {plan.command[0]}: {error}") from error
        if plan.is_script:
            return judge_script(ends)
        verdict = judge(ends, told_to_stop=supervisor.told_to_stop)
        if verdict.exit_code == ExitCode.STOPPED and verdict.report.step is None:
            # Stopped while waiting for peers: what the ranks reached before is still true.
            return replace(verdict, report=known.stopped(rank=verdict.report.rank))
        if not verdict.peers_left:
            return verdict
        step = verdict.report.step
        if step is not None:
            if step > (known.step or 0):
                reforms = 0
            known = verdict.report
        if reforms >= plan.max_reforms:
            _logger.error("gave up after %d re-forms in a row without progress", reforms)
            return verdict
        reforms += 1
        _logger.info(
            "the group broke at step %s (%s): starting this pod's ranks again, "
            "%d of at most %d times without progress",
            "?" if step is None else step,
            verdict.report.error,
            reforms,
            plan.max_reforms,
        )
        supervisor.pause(min(_FIRST_BACKOFF_SECONDS * 2 ** (reforms - 1), _LONGEST_BACKOFF_SECONDS))
        if supervisor.told_to_stop:
            report = known.stopped(rank=verdict.report.rank)
            return Verdict(exit_code=ExitCode.STOPPED, report=report, peers_left=False)


def _rank_environments(
    placement: Placement, env: Mapping[str, str]
) -> dict[int, Mapping[str, str]]:
    threads = max(1, available_cores() // placement.local_world_size)
    return {
        placement.rank_of(local_rank): {
            "OMP_NUM_THREADS": str(threads),  # torch would give every rank all cores
            # Threads that spin while they wait make pods that share cores several times slower.
            "OMP_WAIT_POLICY": "PASSIVE",
            "TMPDIR": _temporary_directory(),
            **env,
            "RANK": str(placement.rank_of(local_rank)),
            "LOCAL_RANK": str(local_rank),
        }
        for local_rank in range(placement.local_world_size)
    }


def _temporary_directory() -> str:
    """Where torch can put the files that it cannot do without, even on a read-only root."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return "/dev/shm"  # in memory, and writable in every pod


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """The flags before `--`, and the command after it, if there is one."""
    if "--" not in arguments:
        return list(arguments), None
    at = list(arguments).index("--")
    return list(arguments[:at]), list(arguments[at + 1 :])


def _parser() -> Parser:
    flags = Parser(
        prog="python -m ddp_trainer.launch",
        description="Starts the ranks of one pod: the bundled trainer, or the command after --.",
        epilog="Flags of the bundled trainer:\n"
        + trainer_parser().format_help().partition("options:\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    flags.add_argument(
        "--max-reforms",
        type=int,
        default=10,
        help="how many times in a row, without a step in between, the ranks are started again "
        "when other pods' ranks go away (default: 10)",
    )
    flags.add_argument(
        "--kill-after-seconds",
        type=float,
        default=30.0,
        help="how long the other ranks of a pod may take to stop when one fails (default: 30)",
    )
    return flags


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
