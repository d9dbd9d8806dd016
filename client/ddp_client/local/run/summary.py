"""Summary of a run, for newcomers. It claims only what was seen."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ddp_operator.api import ranks
from ddp_operator.job.membership.world import members

from ddp_client.local.run.kills import KillRequest
from ddp_client.local.run.run_state import Loss, RunState
from ddp_client.views.job.advice import for_end
from ddp_client.views.job.screen import Fact


def summarise(
    run_state: RunState,
    *,
    kills: Sequence[KillRequest],
    workdir: Path,
    file: Path,
    on_cluster: str = "",
) -> tuple[str, list[Fact]]:
    """Return a title and the rows below it.

    `on_cluster`: the command that runs the job on a cluster; empty: apply the file.
    """
    status = run_state.job.status
    word = status.phase if run_state.finished else "Did not start" if run_state.stuck else "Stopped"
    lines = [*_trained(run_state), *_why(run_state)]
    for loss in run_state.losses:
        lines += [_lost(loss), *_recovered(run_state, loss)]
    lines += [
        ("not killed", f"--kill-rank {kill}: the run ended before that moment")
        for kill in kills
        if kill not in [loss.request for loss in run_state.losses]
    ]
    counts = f"{status.restarts} of {run_state.job.spec.restart.max_restarts} allowed"
    lines += [
        ("restarts", f"{counts}, {status.disruptions} disruptions"),
        ("logs", str(workdir / "logs")),
        *_kept(workdir / "volumes"),
        *_next(run_state, workdir=workdir, file=file, on_cluster=on_cluster),
    ]
    return f"{run_state.job.name}: {word} after {run_state.elapsed_seconds:.0f} s", lines


def _trained(run_state: RunState) -> list[Fact]:
    report, progress = run_state.last_words, run_state.progress
    step = report.get("step", progress.step if progress else None)
    if step is None:
        return []
    total = report.get("totalSteps", progress.total_steps if progress else None)
    text = f"{step} of {total} steps" if total is not None else f"{step} steps"
    text += f" on {len(members(run_state.job))} pods"
    if isinstance(report.get("accuracy"), float):
        text += f", {report['accuracy']:.1%} test accuracy"
    if isinstance(report.get("loss"), float):
        text += f", loss {report['loss']:.4f}"
    return [("trained", text)]


def _why(run_state: RunState) -> list[Fact]:
    status = run_state.job.status
    if status.phase == "Succeeded" or not (run_state.finished or run_state.stuck):
        return []
    why = [("why", f"{status.reason}: {status.message}")]
    remedy = for_end(status, local=True)
    return [*why, *([("what to do", remedy)] if remedy else [])]


def _lost(loss: Loss) -> Fact:
    when = f"{loss.at_seconds:.1f} s after the start"
    if loss.step is not None:
        when += f", about step {loss.step}"
    return ("lost", f"rank {loss.request.rank} (pod {loss.pod}), killed on purpose {when}")


def _recovered(run_state: RunState, loss: Loss) -> list[Fact]:
    resumed = [
        resumption
        for resumption in run_state.resumptions
        if resumption.at_seconds > loss.at_seconds
    ]
    if not resumed:
        again = "no line tells of a checkpoint: the script may have trained all steps again"
        return [("resumed", again)] if run_state.job.status.phase == "Succeeded" else []
    first = resumed[0]
    seconds = first.at_seconds - loss.at_seconds
    source = {
        "memory": f"at step {first.step} from another rank's memory",
        "checkpoint": f"from the checkpoint of step {first.step}",
        "nothing": f"at step {first.step} again: no line tells of a checkpoint",
    }[first.source]
    return [("resumed", f"{source}, {seconds:.1f} s later")]


def _kept(volumes: Path) -> list[Fact]:
    return [("checkpoints", str(directory)) for directory in sorted(volumes.iterdir())]


def _next(run_state: RunState, *, workdir: Path, file: Path, on_cluster: str) -> list[Fact]:
    command = f"{_python()} -m ddp_client.local {file}"
    if run_state.job.status.phase == "Succeeded":
        last_rank = ranks.world_size(run_state.job.spec) - 1
        on_cluster = on_cluster or f"kubectl apply -f {file}"
        hints = [f"{command} --kill-rank {last_rank}@5s", on_cluster]
        return [("try next", hint) for hint in hints]
    if run_state.finished or run_state.stuck:
        return []
    return [("continue with", f"{command} --workdir {workdir}")]


def _python() -> str:
    """Return this interpreter as a user would call it: a relative path if it is below the current
    folder.
    """
    relative = os.path.relpath(sys.executable)
    return sys.executable if relative.startswith("..") else relative
