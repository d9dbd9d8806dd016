"""Summary of a run, for newcomers. It claims only what was seen."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ddp_operator.api import ranks
from ddp_operator.job.membership.world import members

from ddp_client.local.run.display import Line
from ddp_client.local.run.kills import KillRequest
from ddp_client.local.run.run_state import Loss, RunState


def summarise(
    run_state: RunState, *, kills: Sequence[KillRequest], workdir: Path, file: Path
) -> tuple[str, list[Line]]:
    """Return a title and the rows below it."""
    status = run_state.job.status
    word = status.phase if run_state.finished else "Did not start" if run_state.stuck else "Stopped"
    lines = [*_trained(run_state), *_why(run_state)]
    for loss in run_state.losses:
        lines += [_lost(loss), *_recovered(run_state, loss)]
    lines += [
        Line("not killed", f"--kill-rank {kill}: the run ended before that moment")
        for kill in kills
        if kill not in [loss.request for loss in run_state.losses]
    ]
    counts = f"{status.restarts} of {run_state.job.spec.restart.max_restarts} allowed"
    lines += [
        Line("restarts", f"{counts}, {status.disruptions} disruptions"),
        Line("logs", str(workdir / "logs")),
        *_kept(workdir / "volumes"),
        *_next(run_state, workdir=workdir, file=file),
    ]
    return f"{run_state.job.name}: {word} after {run_state.elapsed_seconds:.0f} s", lines


def _trained(run_state: RunState) -> list[Line]:
    said, progress = run_state.last_words, run_state.progress
    step = said.get("step", progress.step if progress else None)
    if step is None:
        return []
    total = said.get("totalSteps", progress.total_steps if progress else None)
    text = f"{step} of {total} steps" if total is not None else f"{step} steps"
    text += f" on {len(members(run_state.job))} pods"
    if isinstance(said.get("accuracy"), float):
        text += f", {said['accuracy']:.1%} test accuracy"
    if isinstance(said.get("loss"), float):
        text += f", loss {said['loss']:.4f}"
    return [Line("trained", text)]


def _why(run_state: RunState) -> list[Line]:
    status = run_state.job.status
    if status.phase == "Succeeded" or not (run_state.finished or run_state.stuck):
        return []
    return [Line("why", f"{status.reason}: {status.message}")]


def _lost(loss: Loss) -> Line:
    when = f"{loss.at_seconds:.1f} s after the start"
    if loss.step is not None:
        when += f", about step {loss.step}"
    return Line("lost", f"rank {loss.request.rank} (pod {loss.pod}), killed on purpose {when}")


def _recovered(run_state: RunState, loss: Loss) -> list[Line]:
    resumed = [found for found in run_state.resumptions if found.at_seconds > loss.at_seconds]
    if not resumed:
        return []
    first = resumed[0]
    seconds = first.at_seconds - loss.at_seconds
    source = (
        f"at step {first.step} from another rank's memory"
        if first.from_memory
        else f"from the checkpoint of step {first.step}"
    )
    return [Line("resumed", f"{source}, {seconds:.1f} s later")]


def _kept(volumes: Path) -> list[Line]:
    return [Line("checkpoints", str(directory)) for directory in sorted(volumes.iterdir())]


def _next(run_state: RunState, *, workdir: Path, file: Path) -> list[Line]:
    command = f"{_python()} -m ddp_client.local {file}"
    if run_state.job.status.phase == "Succeeded":
        last_rank = ranks.world_size(run_state.job.spec) - 1
        hints = [f"{command} --kill-rank {last_rank}@5s", f"kubectl apply -f {file}"]
        return [Line("try next", hint) for hint in hints]
    if run_state.finished or run_state.stuck:
        return []
    return [Line("continue with", f"{command} --workdir {workdir}")]


def _python() -> str:
    """Return this interpreter as a user would call it: a relative path if it is below the current
    folder.
    """
    relative = os.path.relpath(sys.executable)
    return sys.executable if relative.startswith("..") else relative
