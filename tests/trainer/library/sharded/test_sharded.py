"""Which step sharded ranks continue from, how a state is packed, and what is refused."""

from __future__ import annotations

import itertools
import re
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import ddp_trainer
import pytest
import torch
from ddp_protocol.copies import order_by_domain
from ddp_trainer.exit_codes import ConfigurationError, ExitCode
from ddp_trainer.library.sharded import packing
from ddp_trainer.library.sharded.agreement import Inventory, newest_complete
from ddp_trainer.library.sharded.copy_holders import rounds
from ddp_trainer.library.sharded.support import mesh_of
from ddp_trainer.memory.restoration import MismatchError
from ddp_trainer.memory.volume import Key
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DataLoader, TensorDataset

from tests.trainer.library.sharded.sharding import NEEDS_TORCH

pytestmark = NEEDS_TORCH


def keys(*steps: int) -> list[Key]:
    """Return the keys of snapshots in processes."""
    return [Key(0, step) for step in steps]


FRESH = Inventory(own=keys(0), copies=[])


def inventories(size: int, copies: int, ahead: set[int], copied: set[int]) -> list[Inventory]:
    """Return the snapshots of ranks while they take step 7; some have taken it.

    `ahead`: ranks that have taken it. `copied`: the ones among them with copies on other ranks.
    """
    found = []
    for rank in range(size):
        sources = [source for _, source in rounds(rank, [1] * size, "", copies=copies)]
        held = [(source, key) for source in sources for key in keys(5, 6)]
        held += [(source, Key(0, 7)) for source in sources if source in copied]
        found.append(Inventory(own=keys(6, 7) if rank in ahead else keys(5, 6), copies=held))
    return found


@pytest.mark.parametrize(("size", "copies"), [(2, 1), (3, 1), (3, 2), (4, 2), (5, 2), (5, 3)])
def test_any_ranks_up_to_the_number_of_copies_may_be_lost(size: int, copies: int) -> None:
    ranks = range(size)
    for lost in itertools.combinations(ranks, copies):
        for ahead in ([], [0], [size - 1], ranks):
            held = inventories(size, copies, set(ahead), set(ahead))
            for rank in lost:
                held[rank] = FRESH
            decision = newest_complete(held)
            assert decision is not None
            assert decision.key.step == (7 if ahead is ranks else 6)
            assert set(decision.senders) == set(lost)
            for rank, sender in decision.senders.items():
                assert (rank, decision.key) in held[sender].copies


def test_a_step_without_all_copies_is_not_continued_from() -> None:
    held = inventories(3, 1, ahead={0, 1, 2}, copied={0, 2})
    held[1] = FRESH
    decision = newest_complete(held)
    assert decision is not None
    assert (decision.key.step, decision.senders) == (6, {1: 2})


def test_more_lost_ranks_than_copies_are_lost() -> None:
    held = inventories(4, 1, ahead=set(), copied=set())
    held[0] = held[2] = FRESH
    assert newest_complete(held) is None


def test_a_later_generation_is_newer_than_a_higher_step() -> None:
    held = [Inventory(own=[Key(1, 9), Key(2, 6)], copies=[])] * 2
    decision = newest_complete(held)
    assert decision is not None
    assert decision.key == Key(2, 6)


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_copies_leave_the_pod_and_the_block_that_have_room_for_them(copies: int) -> None:
    random = Random(copies)
    for _ in range(300):
        blocks = [(random.choice("abc"),) for _ in range(random.randint(1, 12))]
        sizes = [random.choice([1, 1, 2, 4]) for _ in blocks]
        ranks = range(sum(sizes))
        order = ",".join(map(str, order_by_domain(blocks)))
        plan = [rounds(rank, sizes, order, copies=copies) for rank in ranks]
        made = min(copies, len(ranks) - 1)
        pod_of = [pod for pod, size in enumerate(sizes) for _ in range(size)]
        for rank, exchanges in enumerate(plan):
            holders = [holder for holder, _ in exchanges]
            assert len({*holders} - {rank}) == len(holders) == made
            assert all(plan[holder][at][1] == rank for at, holder in enumerate(holders))
        for domain_of in (pod_of, [blocks[pod] for pod in pod_of]):
            for domain in {*domain_of}:
                own = [rank for rank in ranks if domain_of[rank] == domain]
                lost = [
                    rank for rank in own if {domain_of[each] for each, _ in plan[rank]} <= {domain}
                ]
                assert len(lost) == max(0, len(own) - (len(ranks) - len(own)) * made)


def test_without_a_known_order_copies_go_a_part_of_the_ranks_away() -> None:
    for order in ("", "0-2", "5,4,3,2,1,0,0"):
        assert rounds(1, [2] * 6, order, copies=2) == [(5, 9), (9, 5)]
    assert rounds(0, [1], "", copies=0) == []


def sharded(model: nn.Module) -> nn.Module:
    """Shard a model over the job's only rank."""
    fully_shard(model, mesh=ddp_trainer.device_mesh())
    return model


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def test_a_state_is_packed_and_unpacked() -> None:
    whole = sharded(nn.Linear(3, 2)).weight
    assert isinstance(whole, DTensor)
    state: dict[str, Any] = OrderedDict(
        numbers=[1, 0.1, float("inf"), None, True, "text", b"bytes", (2, 3)],
        scalar=torch.tensor(3),
        empty=torch.empty(0, 4),
        half=torch.randn(3, 3).t().bfloat16(),
        mask=torch.tensor([True, False, True]),
        whole=whole.detach(),
        moment=torch.zeros_like(whole.detach()),
    )
    memory = packing.pack(state)
    again = packing.pack(state, memory)
    assert again.data_ptr() == memory.data_ptr(), "memory is used again"
    found = packing.unpack(memory, [whole])
    assert list(found) == list(state)
    for key, value in state.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(local(found[key]), local(value))
            assert found[key].dtype == value.dtype
        else:
            assert found[key] == value
    assert found["moment"].placements == whole.placements
    memory.zero_()
    assert found["numbers"] == state["numbers"], "it is a copy"
    assert torch.equal(found["half"], state["half"])
    with pytest.raises(MismatchError, match="is a DTensor"):
        packing.unpack(packing.pack(state), [])


def test_a_packed_state_cannot_run_code() -> None:
    with pytest.raises(TypeError, match=r'state\["evil"\] is of type builtin'):
        packing.pack({"evil": print})


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 4), nn.Linear(4, 1))


def refusal(caplog: pytest.LogCaptureFixture, **arguments: Any) -> str:
    caplog.clear()
    with pytest.raises(SystemExit) as end, ddp_trainer.join(**arguments):
        pass
    assert end.value.code == 64
    return caplog.messages[-1]


def test_sharded_models_that_cannot_continue_are_refused(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = sharded(model())
    assert "shard_copies=2: choose 0 to 0" in refusal(caplog, model=whole, shard_copies=2)
    assert "no sharded model" in refusal(caplog, model=model(), shard_copies=0)
    assert 'set checkpoint_dir=""' in refusal(caplog, model=whole, checkpoint_dir=tmp_path)
    assert "logical_shards" in refusal(caplog, model=whole, logical_shards=2)
    assert "so set verify_replicas=1" in refusal(caplog, model=whole, verify_replicas=10)
    scaler = torch.amp.GradScaler("cpu")
    assert "GradScaler" in refusal(caplog, model=whole, scaler=scaler)
    plain = model()
    early = torch.optim.SGD(plain.parameters(), lr=0.1)
    sharded(plain)
    assert "change of the model, such as fully_shard()" in refusal(
        caplog, model=plain, optimizer=early
    )
    partly = model()
    fully_shard(partly[0], mesh=ddp_trainer.device_mesh())  # type: ignore[index]
    assert refusal(caplog, model=partly).startswith("1.weight is not sharded")
    monkeypatch.setattr(torch, "__version__", "2.10.1")
    assert "needs torch 2.11 or newer" in refusal(caplog, model=whole)


def test_a_pod_with_too_few_gpus_is_refused_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDP_BACKEND", "nccl")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigurationError, match="2 processes in this pod need as many GPUs"):
        ddp_trainer.device_mesh()


def test_shards_of_different_sizes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    for size in (-2, 0, 3, 8):
        with pytest.raises(ConfigurationError, match=f"shard_size={size}: choose a divisor of the"):
            ddp_trainer.device_mesh(shard_size=size)


def test_one_dimension_of_a_mesh_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """Gradients of its replicas would differ."""
    net = model()
    fully_shard(net, mesh=ddp_trainer.device_mesh(shard_size=1)["shard"])
    assert "sharded over all ranks" in refusal(caplog, model=net)


def test_replicas_of_shards_need_a_mesh_of_the_job() -> None:
    """HSDP: a model that is sharded over a mesh of the script's own is refused."""
    with fake_group(ranks=4):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        net = model()
        fully_shard(net, mesh=mesh)
        with pytest.raises(
            ConfigurationError, match=r"shard the model only by fully_shard\(model, "
        ):
            mesh_of([net])


@contextmanager
def fake_group(ranks: int) -> Iterator[None]:
    """Be rank 0 of a group; its other ranks do not exist."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


def test_a_dtensor_that_is_not_sharded_is_refused() -> None:
    whole, mesh = nn.Linear(1, 1), ddp_trainer.device_mesh()
    for name, parameter in [*whole.named_parameters()]:
        replicated = DTensor.from_local(parameter, mesh, [Replicate()], run_check=False)
        setattr(whole, name, nn.Parameter(replicated))
    with pytest.raises(ConfigurationError, match=r"^weight is a DTensor .*mesh=ddp_trainer\."):
        mesh_of([whole])


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(6.0).reshape(6, 1)), batch_size=2)


def test_a_sharded_model_is_called_within_the_loop() -> None:
    net = sharded(model())
    optimizer = torch.optim.AdamW(net.parameters())
    with ddp_trainer.join(model=net, optimizer=optimizer) as job:
        with pytest.raises(ConfigurationError, match=r"outside of the loop of job\.batches"):
            net(torch.ones(1, 1))
        for (inputs,) in job.batches(loader()):
            net(inputs).sum().backward()
            with pytest.raises(ConfigurationError, match="takes turns, which sharded"):
                job.step(optimizer=optimizer)
            assert job.step()
            with torch.no_grad():
                net(inputs)
        assert job.steps_done == 3
        with pytest.raises(ConfigurationError, match=r"call it directly"):
            job.wrap(net)


def test_a_rank_with_another_part_restarts() -> None:
    with pytest.MonkeyPatch.context() as other:
        other.setenv("RANK", "1")
        other.setenv("WORLD_SIZE", "2")
        net = sharded(model())
    with pytest.raises(SystemExit) as ended, ddp_trainer.join(model=net):
        pass
    assert ended.value.code == ExitCode.NEW_PROCESS
    message = r"holds part 1 of 2 of the model, but is now rank 0 of 1: it must restart"
    assert re.search(message, str(ended.value.__cause__))


def test_a_sharded_job_that_ends_releases_its_group() -> None:
    net = sharded(model())
    with ddp_trainer.join(model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1)) as job:
        for (inputs,) in job.batches(loader()):
            net(inputs).sum().backward()
            job.step()
        group = weakref.ref(job._session.formation.group)
    assert group() is None
