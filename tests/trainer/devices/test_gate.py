"""The gate passes only complete results, and reports a broken group or a lost device."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import ddp_trainer
import pytest
import torch
from ddp_trainer.collectives.pending import PendingWork
from ddp_trainer.devices import accelerator
from ddp_trainer.devices.accelerator import prepare_nccl
from ddp_trainer.devices.gate import Gate, expect, pause_after
from ddp_trainer.exit_codes import BrokenGroupError, LostDeviceError
from ddp_trainer.process_group.failures import is_lost_device, is_lost_peer
from ddp_trainer.settings.environment import Environment
from ddp_trainer.system.watchdog import Watchdog
from torch import distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.trainer.support.device_errors import DeviceError
from tests.trainer.support.pods import assert_same, contract
from tests.trainer.support.same_group import group_of_one


class Device:
    """A device that completes its events at a set time; its clock moves with sleeps."""

    def __init__(self, *, comes_at: float = 0.0) -> None:
        self.now = 0.0
        self.comes_at = comes_at
        self.looks = 0
        self.when_it_comes: Callable[[], None] = lambda: None

    def query(self) -> bool:
        self.looks += 1
        if self.now < self.comes_at:
            return False
        self.when_it_comes()
        return True

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Failure:
    def __init__(self) -> None:
        self.error: Exception | None = None

    def __call__(self) -> Exception | None:
        return self.error


def gate(device: Device, failure: Failure, **settings: Any) -> Gate:
    return Gate(
        lambda: device,
        failure,
        timeout_seconds=600.0,
        clock=lambda: device.now,
        sleep=device.sleep,
        **settings,
    )


def test_a_complete_event_takes_one_query() -> None:
    device = Device()
    gate(device, Failure()).wait()
    assert device.looks == 1
    assert device.now == 0


@pytest.mark.parametrize("seconds", [1e-4, 0.02, 3.0])
def test_a_later_event_is_found_soon(seconds: float) -> None:
    device = Device(comes_at=seconds)
    gate(device, Failure()).wait()
    assert seconds <= device.now <= seconds * (1 + 1 / 32) + 1e-4


def test_an_event_after_an_abort_does_not_pass() -> None:
    """An abort sets the failure first; then the device continues."""
    device, failure = Device(comes_at=1.0), Failure()

    def abort() -> None:
        failure.error = BrokenGroupError("rank 1 is gone")

    device.when_it_comes = abort
    with pytest.raises(BrokenGroupError, match="rank 1 is gone"):
        gate(device, failure).wait()


def test_a_broken_group_ends_the_wait() -> None:
    device, failure = Device(comes_at=1e9), Failure()
    sleep = device.sleep

    def break_after_a_second(seconds: float) -> None:
        sleep(seconds)
        if device.now >= 1:
            failure.error = ValueError("a hook's own mistake")

    device.sleep = break_after_a_second  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="a hook's own mistake"):
        gate(device, failure).wait()
    assert 1 <= device.now < 1.1


def test_a_device_that_hangs_ends_the_wait_after_the_groups_timeout() -> None:
    device = Device(comes_at=1e9)
    with pytest.raises(BrokenGroupError, match="more than 600 s"):
        gate(device, Failure()).wait()
    assert 600 <= device.now < 601


def test_a_stopped_rank_waits_a_few_seconds_only() -> None:
    device = Device(comes_at=1e9)
    with pytest.raises(BrokenGroupError):
        gate(device, Failure(), told_to_stop=lambda: device.now >= 30).wait()
    assert 34 < device.now < 36


def test_a_failed_device_raises_its_error() -> None:
    device = Device()

    def fail() -> None:
        raise DeviceError("CUDA error: device-side assert triggered")

    device.when_it_comes = fail
    with pytest.raises(DeviceError) as raised:
        gate(device, Failure()).wait()
    assert is_lost_device(raised.value)


def test_a_broken_group_is_noticed_on_a_cpu() -> None:
    failure = Failure()
    on_cpu = Gate(None, failure, timeout_seconds=1)
    on_cpu.wait()
    failure.error = BrokenGroupError("rank 1 is gone")
    with pytest.raises(BrokenGroupError):
        on_cpu.wait()


def test_pauses_grow_with_the_wait() -> None:
    assert pause_after(0) == pause_after(1e-3) < pause_after(0.01) < pause_after(1) == 500e-6


def test_a_device_that_hangs_without_a_reason_is_lost() -> None:
    with pytest.raises(LostDeviceError, match=r"did not come to itself within 0\.01 s"):
        expect(Device(comes_at=1), within_seconds=0.01, what="come to itself")


def test_a_failed_collective_is_known_before_a_wait() -> None:
    source: torch.futures.Future[torch.Tensor] = torch.futures.Future()

    def lose(_: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
        raise RuntimeError("Connection closed by peer")

    pending = PendingWork()
    wait = pending.begin(source.then(lose))
    assert pending.failure is None
    source.set_result(torch.ones(1))
    assert "Connection closed" in str(pending.failure)
    with pytest.raises(RuntimeError, match="Connection closed"):
        wait()


class NormNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16)
        self.linear = nn.Linear(16, 16, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.linear(self.norm(inputs))
        return outputs


def test_a_refused_step_leaves_no_trace(no_launcher: None) -> None:
    del no_launcher
    torch.manual_seed(1)
    model = NormNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(64, 16)), batch_size=8)
    failure = Failure()
    refused = 0
    with ddp_trainer.join(model=model, optimizer=optimizer) as job:
        net = job.wrap(model)
        for (inputs,) in job.batches(loader):
            before = copy.deepcopy(job._session.run.state_dict())
            net(inputs).square().mean().backward()
            if job.steps_done == 4 and refused == 0:
                group = job._session.formation.group
                group.gate = Gate(None, failure, timeout_seconds=1)
                failure.error = BrokenGroupError("rank 1 is gone")
            if not job.step():
                assert_same(job._session.run.state_dict(), before)
                refused += failure.error is not None
                failure.error = None
        assert (job.steps_done, refused) == (8, 1)


def test_tensors_of_a_broken_group_are_not_used() -> None:
    failure = Failure()
    failure.error = BrokenGroupError("rank 1 is gone")
    tensor = torch.ones(3)
    with group_of_one(failure) as group:
        with pytest.raises(BrokenGroupError):
            group.broadcast_tensors(tensor)
        assert tensor.tolist() == [1, 1, 1]


def watchdog_that_notes() -> tuple[Watchdog, list[str], threading.Event]:
    """Return a watchdog that records its calls instead of ending the process."""
    ended: list[str] = []
    called = threading.Event()

    def end(what: str) -> None:
        ended.append(what)
        called.set()

    return Watchdog(end), ended, called


def test_the_watchdog_ends_a_block_after_its_deadline() -> None:
    watchdog, ended, called = watchdog_that_notes()
    watchdog.within(3600, "the later deadline")
    watchdog.within(0.01, "the sooner one")
    watchdog.within(3600, "a later one does not take its place")
    assert called.wait(60)
    assert ended == ["the sooner one"]


def test_the_watchdog_spares_blocks_that_end_in_time() -> None:
    ended: list[str] = []
    watchdog = Watchdog(ended.append)
    with watchdog.during(3600, "a block"):
        pass
    watchdog.within(3600, "left in time")
    watchdog.over()
    watchdog.within(0.0, "told too late")
    for thread in threading.enumerate():
        if thread.name == "watchdog":
            thread.join(60)  # an hour, had it not been cancelled
            assert not thread.is_alive()
    assert ended == []


@pytest.mark.parametrize(
    "error",
    [
        DeviceError("CUDA error: device-side assert triggered"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
        dist.DistBackendError(
            "NCCL error in: ProcessGroupNCCL.cpp:3356, unhandled cuda error (run with "
            "NCCL_DEBUG=INFO for details). ncclUnhandledCudaError: Call to CUDA function failed. "
            "Last error: Cuda failure 'the launch timed out and was terminated'; Timeout"
        ),
        LostDeviceError("it hangs"),
    ],
)
def test_a_lost_device_is_no_lost_peer(error: Exception) -> None:
    assert is_lost_device(error)
    assert not is_lost_peer(error)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        dist.DistBackendError("NCCL error: ncclRemoteError: remote process exited"),
        ValueError("CUDA error: quoted in an error of mine"),
        BrokenGroupError("NCCL: COMM_ERROR"),
    ],
)
def test_other_errors_do_not_lose_the_device(error: Exception) -> None:
    assert not is_lost_device(error)


def test_nccl_leaves_broken_collectives_to_this_process() -> None:
    environment = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
    prepare_nccl(environment)
    assert environment == {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "250",
        "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
        "NCCL_NVLS_ENABLE": "0",
    }


@pytest.mark.parametrize(("value", "warns"), [("", False), ("0", False), ("1", True)])
def test_a_setting_that_ends_processes_causes_a_warning(
    value: str, warns: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    environment = {name: value} if value else {}
    prepare_nccl(environment)
    monkeypatch.setattr("os.environ", environment)
    place = {"DDP_BACKEND": "nccl", "RANK": "0", "LOCAL_RANK": "0"}
    placement = Environment.from_env(contract() | place).placement
    accelerator.accelerator_for(placement, torch.device("cpu"))
    assert ("Unset the variable" in caplog.text) == warns
    assert environment[name] == (value or "0")


def test_blocks_have_deadlines_of_their_own() -> None:
    watchdog, ended, called = watchdog_that_notes()
    with watchdog.during(3600, "one"), watchdog.during(0.01, "another"):
        assert called.wait(60)
    assert ended == ["another"]
    with watchdog.during(3600, "one that the group's end ends"):
        watchdog.over()
    with watchdog.during(0.0, "one that comes too late"):
        pass
    for thread in threading.enumerate():
        if thread.name == "watchdog":
            thread.join(60)
            assert not thread.is_alive()
    assert ended == ["another"]
