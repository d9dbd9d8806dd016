"""A rank of a sharded model (FSDP2) that saves snapshots and resumes from them.

`python -m tests.trainer.memory.sharded` ends with exit code 0 if all checks succeed.
"""

from __future__ import annotations

import inspect
import re
from concurrent.futures import Future
from typing import Any

import pytest
from ddp_trainer.memory import dcp as memory_dcp
from ddp_trainer.memory.dcp import Reader, Writer
from ddp_trainer.memory.restoration import MismatchError
from ddp_trainer.system.torch_release import release
from torch import distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from tests.trainer.memory.app import App
from tests.trainer.memory.fsdp import DEVICE, form_group, local, state_of, train, training
from tests.trainer.memory.sameness import same
from tests.trainer.memory.states import restored, snapshot_file


def check(mesh: DeviceMesh) -> None:
    """Resume a training, and compare it with one that was not interrupted."""
    model, optimizer = training(mesh, seed=1)
    train(model, optimizer, range(2))
    file = snapshot_file(state_of(model, optimizer))
    train(model, optimizer, range(2, 4))

    resumed, its_optimizer = training(mesh, seed=2)
    state = restored(file, state_of(resumed, its_optimizer))
    its_optimizer.load_state_dict(state["optimizer"])
    train(resumed, its_optimizer, range(2, 4))
    assert same(local(state_of(resumed, its_optimizer)), local(state_of(model, optimizer)))

    with pytest.raises(MismatchError, match="has no DTensor of that kind"):
        restored(file)
    names = ("other", "names")[: mesh.ndim]
    other, _ = training(init_device_mesh(DEVICE, mesh.shape, mesh_dim_names=names), seed=1)
    with pytest.raises(MismatchError, match=re.escape('state["model"]["0.weight"] is a DTensor')):
        restored(file, {**state, "model": other.state_dict()})


def check_dcp(mesh: DeviceMesh, other: DeviceMesh) -> None:
    """Save by `torch.distributed.checkpoint`, and load to the same mesh and to another."""
    model, optimizer = training(mesh, seed=1)
    train(model, optimizer, range(2))
    files = []

    def keep(step: int, state: object, *, replicated: bool) -> bool:
        assert (step, replicated) == (2, False)
        files.append(snapshot_file(state))
        return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_dcp, "save", keep)
        state = {"app": App(model, optimizer), "rank": dist.get_rank()}
        future = async_save(state, storage_writer=Writer(2), **apart())
        train(model, optimizer, range(2, 4))
        assert isinstance(future, Future)
        future.result()
        with pytest.raises(CheckpointException, match="is sharded: leave out"):
            dcp_save(state, storage_writer=Writer(2, replicated=True))
        patch.setattr(memory_dcp, "load", lambda: (2, restored(*files)))
        reader = Reader()

    resumed, its_optimizer = training(mesh, seed=2)
    state = {"app": App(resumed, its_optimizer), "rank": -1}
    dcp_load(state, storage_reader=reader)
    assert state["rank"] == dist.get_rank()
    train(resumed, its_optimizer, range(2, 4))
    assert same(local(state_of(resumed, its_optimizer)), local(state_of(model, optimizer)))

    state = {"app": App(*training(other, seed=1)), "rank": -1}
    with pytest.raises(CheckpointException, match="was sharded otherwise when it was saved"):
        dcp_load(state, storage_reader=reader)


def apart() -> dict[str, Any]:
    """Return the option by which `async_save` does not communicate in the training's group."""
    if "no_dist" in inspect.signature(async_save).parameters:  # not in torch 2.7
        return {"no_dist": True}
    return {"process_group": dist.new_group()}


def main() -> None:
    """Check a mesh of all four ranks, and one of two dimensions if torch can train over it."""
    form_group()
    flat = init_device_mesh(DEVICE, (4,), mesh_dim_names=("shard",))
    square = init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("replicate", "shard"))
    check(flat)
    check_dcp(flat, square)
    if DEVICE != "cpu" or release() >= (2, 8):  # older gloo cannot average, as HSDP does
        check(square)
        check_dcp(square, flat)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
