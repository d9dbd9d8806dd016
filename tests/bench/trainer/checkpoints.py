"""How long training waits for a save that runs beside it, against one that it waits out.

Both save the same state through the trainer's own saver, one after the other in turns.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch
from ddp_trainer.checkpoints.checkpoint import CheckpointDirectory
from ddp_trainer.checkpoints.saver import Saver
from ddp_trainer.run.stop import StopSignal
from ddp_trainer.run.train_state import TrainState
from ddp_trainer.settings.options import Options
from ddp_trainer.system.buffers import size_of
from torch import nn

from tests.bench.benchmark import BenchmarkError, Outcome, Settings, spread

AIM_RATIO = 0.1
LAYERS, WIDTH, BATCH = 10, 1024, 8
"""With AdamW's two averages, a state of 126 MB."""
SAVES = 3
"""Of each kind in a repetition."""
_LONGEST_SECONDS = 120.0


@dataclass(frozen=True)
class Saved:
    """One save."""

    stall: float
    """Seconds until training continued."""
    lost: float
    """Seconds by which training was later, once the checkpoint was complete, than without it."""
    complete: float
    """Seconds until the checkpoint was complete."""


def measure(settings: Settings) -> Outcome:
    """Save in turns while training; the first save beside training, which gets memory, apart."""
    run = _new_run()
    kinds = {"waited out": ["--checkpoint-sync"], "beside": []}
    savers = {kind: _saver(settings.scratch / kind, flags) for kind, flags in kinds.items()}
    _steps(run, 3)
    size_mb = size_of(run.state_dict()) / 1e6
    first = _save(savers["beside"], run, step_seconds=_steps(run, 5))
    found: dict[str, list[Saved]] = {kind: [] for kind in kinds}
    steps: list[float] = []
    for _ in range(settings.repeat * SAVES):
        for kind, saver in savers.items():
            steps.append(_steps(run, 5))
            found[kind].append(_save(saver, run, step_seconds=steps[-1]))
    ratio = median(_ratios(found, lambda saved: saved.stall))
    lines = [
        f"state        {size_mb:.0f} MB: {LAYERS} layers of {WIDTH} x {WIDTH}, AdamW; "
        f"{torch.get_num_threads()} threads",
        f"step         {spread([1e3 * seconds for seconds in steps], 0)} ms",
        f"repetitions  {settings.repeat} x {SAVES}, in turns; shown: median (min-max)",
        "",
        f"{'':14}{'stall, s':>22}{'time lost, s':>22}{'complete after, s':>22}",
        *(_row(kind, saves) for kind, saves in found.items()),
        _row("beside, first", [first]),
        f"{'ratio':14}{spread(_ratios(found, lambda saved: saved.stall), 3):>22}"
        f"{spread(_ratios(found, lambda saved: saved.lost), 3):>22}",
        "",
        f"aim: ratio of the stalls ≤ {AIM_RATIO} {'met' if ratio <= AIM_RATIO else 'MISSED'}",
    ]
    data = {kind: [asdict(saved) for saved in saves] for kind, saves in found.items()}
    return Outcome("\n".join(lines), {"stateMB": size_mb, "first": asdict(first), **data})


def _new_run() -> TrainState:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    optimizer = torch.optim.AdamW(model.parameters())
    run = TrainState({"model": model, "optimizer": optimizer}, seed=0, device=torch.device("cpu"))
    run.choose_samples(10**9)
    return run


def _saver(root: Path, flags: list[str]) -> Saver:
    directory = CheckpointDirectory(root, keep=2)
    return Saver(directory, Options.parse(flags), stop=StopSignal(within_seconds=60.0))


def _steps(run: TrainState, count: int) -> float:
    """Train; returns the mean seconds of a step."""
    began = time.perf_counter()
    for _ in range(count):
        inputs = torch.randn(BATCH, WIDTH)
        run.models[0](inputs).square().mean().backward()
        run.complete_step(BATCH)
    return (time.perf_counter() - began) / count


def _save(saver: Saver, run: TrainState, *, step_seconds: float) -> Saved:
    began = time.perf_counter()
    saver.save(run)
    stall = time.perf_counter() - began
    saved_step, steps = run.position.step, 0
    while (newest := saver.directory.newest) is None or newest.step != saved_step:
        if time.perf_counter() - began > _LONGEST_SECONDS:
            raise BenchmarkError(f"step {saved_step} was not saved in {_LONGEST_SECONDS:g} s")
        _steps(run, 1)
        steps += 1
    complete = time.perf_counter() - began
    saver.close()
    return Saved(stall=stall, lost=complete - steps * step_seconds, complete=complete)


def _ratios(found: dict[str, list[Saved]], value: Callable[[Saved], float]) -> list[float]:
    pairs = zip(found["beside"], found["waited out"], strict=True)
    return [value(beside) / value(waited_out) for beside, waited_out in pairs]


def _row(title: str, saves: list[Saved]) -> str:
    cells = (
        spread([saved.stall for saved in saves], 3),
        spread([saved.lost for saved in saves], 2),
        spread([saved.complete for saved in saves], 2),
    )
    return f"{title:14}" + "".join(f"{cell:>22}" for cell in cells)
