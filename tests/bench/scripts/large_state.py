"""A training with a large state, that keeps it in one of four ways.

    python -m tests.bench.scripts.large_state WAY MEGABYTES FOLDER ADDRESS

MEGABYTES: parameters and AdamW's averages in each rank. ADDRESS: of this pod's launcher. The model
has 16 large layers. A step trains one of them, as in a mixture of experts, so that steps are short:
only saves and losses are measured. Each rank writes what it does to
`FOLDER/events.rankN`, as `reports.memory_loss.Event` reads it.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import ddp_trainer
import torch
from ddp_trainer import memory
from ddp_trainer.memory import loading
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, TensorDataset

EVERY_STEPS = 10
"""Steps from one save to the next."""
_SHORTEST_STEP_SECONDS = 0.1
_STEP_SECONDS_PER_GB = 0.8
"""Of state in each rank: nobody saves more often than copies travel."""
LAYERS = 16
_BATCH = 4
_NUMBER_BYTES = 3 * 4
"""A parameter in float32, with AdamW's two averages."""
_STEPS = 100_000
"""Never reached: the benchmark ends the processes."""

State = dict[str, Any]


class Layers(nn.Module):
    """A model that uses another layer in each step."""

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, inputs: Tensor, step: int) -> Tensor:
        """Return the layer's outputs."""
        outputs: Tensor = self.layers[step % len(self.layers)](inputs)
        return outputs


class Averages:
    """State beside the model and the optimizer, such as averages of weights."""

    def __init__(self, size: int) -> None:
        """`size`: in bytes. A new process has other values than those before it."""
        numbers = size // 4 // LAYERS
        self._tensors = {str(i): torch.full((numbers,), float(os.getpid())) for i in range(LAYERS)}

    def state_dict(self) -> State:
        """Return the tensors."""
        return self._tensors

    def load_state_dict(self, state: State) -> None:
        """Overwrite the tensors."""
        _copy(state, self._tensors)


class Note(Protocol):
    """Writes an event."""

    def __call__(self, kind: str, step: int, **more: float) -> None: ...


def main(way: str, folder: Path, megabytes: int, address: str) -> None:
    """Train until the end of the process."""
    loading._LOOPBACK = address  # the pods share one machine
    pace = max(_SHORTEST_STEP_SECONDS, megabytes / 1e3 * _STEP_SECONDS_PER_GB)
    WAYS[way](folder, int(megabytes * 1e6), pace)


def of_memory(folder: Path, size: int, pace: float) -> None:
    """Save in memory; a launcher restarts the processes."""

    def load(state: State) -> int:
        found = memory.load(into=state)
        return 0 if found is None else found[0]

    _by_hand(folder, size, pace, load=load, save=memory.save)


def of_torch(folder: Path, size: int, pace: float) -> None:
    """Save to a volume as people do by hand; torchrun restarts the processes."""

    def path(step: int) -> Path:
        return folder / f"step-{step}.rank{dist.get_rank()}.pt"

    newest = folder / "newest"

    def load(state: State) -> int:
        if not newest.exists():
            return 0
        step = int(newest.read_text())
        _copy(torch.load(path(step), mmap=True, weights_only=True), state)
        return step

    def save(step: int, state: State) -> bool:
        torch.save(state, path(step))
        dist.barrier()
        if dist.get_rank() == 0:
            new = newest.with_suffix(".new")
            new.write_text(str(step))
            new.rename(newest)
        path(step - 2 * EVERY_STEPS).unlink(missing_ok=True)
        return True

    _by_hand(folder, size, pace, load=load, save=save)


def _by_hand(
    folder: Path,
    size: int,
    pace: float,
    *,
    load: Callable[[State], int],
    save: Callable[[int, State], bool],
) -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model, optimizer = _sharded(mesh, size)
    for parameter in model.parameters():  # as after a first step
        zeros = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[parameter] = {"step": torch.tensor(0.0), **zeros}
    state = {
        "model": _local(model.state_dict()),
        "optimizer": _local(dict(enumerate(optimizer.state.values()))),
    }
    first = load(state)
    copy = {name: _map(torch.zeros_like, part) for name, part in state.items()}
    note = _notes(folder, dist.get_rank())
    inputs = _inputs(model)
    for step in range(first + 1, _STEPS):
        began = time.monotonic()
        model(inputs, step).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        _wait(began + pace)
        note("done", step)
        if step % EVERY_STEPS == 0:
            dist.barrier()  # it is not the other rank's step that is measured
            begin = time.perf_counter()
            _copy(state, copy)
            dist.barrier()
            middle = time.perf_counter()
            saved = save(step, state)
            now = time.perf_counter()
            note("saved" if saved else "skipped", step, seconds=now - middle, copy=middle - begin)


def of_join(folder: Path, size: int, pace: float) -> None:
    """DDP with the library's checkpoints; the ranks that stay keep their processes.

    DDP would send the gradients of all layers, so the model has one, beside other state.
    """
    model = _layers(size // LAYERS, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    _in_process(
        folder,
        pace,
        model,
        optimizer,
        averages=Averages(size - size // LAYERS),
        checkpoint_dir=folder / "checkpoints",
        checkpoint_every_steps=EVERY_STEPS,
        checkpoint_every_seconds=0,
    )


def of_sharded_join(folder: Path, size: int, pace: float) -> None:
    """FSDP2 with a copy of each step in another rank; the ranks that stay keep their processes."""
    model, optimizer = _sharded(ddp_trainer.device_mesh(), size)
    _in_process(folder, pace, model, optimizer, checkpoint_dir="", shard_copies=1)


def _in_process(
    folder: Path,
    pace: float,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    **settings: Any,
) -> None:
    inputs = _inputs(model)
    loader = DataLoader(TensorDataset(inputs.repeat(200, 1)), batch_size=_BATCH)
    with ddp_trainer.join(model=model, optimizer=optimizer, **settings) as job:
        note = _notes(folder, job.rank)
        net = model if "shard_copies" in settings else job.wrap(model)
        for _ in job.epochs(_STEPS):
            for (batch,) in job.batches(loader):
                began = time.monotonic()
                net(batch, job.steps_done).square().mean().backward()
                if job.step():
                    _wait(began + pace)
                    note("done", job.steps_done)


WAYS: Mapping[str, Callable[[Path, int, float], None]] = {
    "memory": of_memory,
    "torch": of_torch,
    "join": of_join,
    "sharded-join": of_sharded_join,
}


def _layers(size: int, count: int = LAYERS) -> Layers:
    """Return a model with so many bytes of state."""
    width = 2 * round(math.sqrt(size / _NUMBER_BYTES / count) / 2)
    torch.manual_seed(0)
    return Layers(nn.Linear(width, width, bias=False) for _ in range(count))


def _sharded(mesh: DeviceMesh, size: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a model with so many bytes of state in each rank."""
    model = _layers(size * mesh.size())
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters())


def _inputs(model: nn.Module) -> Tensor:
    return torch.ones(_BATCH, next(model.parameters()).shape[1])


def _wait(until: float) -> None:
    time.sleep(max(0.0, until - time.monotonic()))


def _notes(folder: Path, rank: int) -> Note:
    file = (folder / f"events.rank{rank}").open("a", buffering=1)

    def note(kind: str, step: int, **more: float) -> None:
        event = {"kind": kind, "step": step, "rank": rank, "at": time.time(), **more}
        file.write(json.dumps(event) + "\n")

    return note


def _map(change: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _map(change, part) for key, part in value.items()}
    return change(value)


def _local(value: Any) -> Any:
    """Return the state with this rank's shards; they share memory with the whole."""
    return _map(lambda one: one.to_local() if isinstance(one, DTensor) else one, value)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, dict):
        for part in value.values():
            yield from _tensors(part)
    else:
        yield value


def _copy(source: State, target: State) -> None:
    with torch.no_grad():
        for one, other in zip(_tensors(source), _tensors(target), strict=True):
            other.copy_(one)


if __name__ == "__main__":
    _, chosen, amount, place, host = sys.argv
    main(chosen, Path(place), int(amount), host)
