"""Loops that could not train as they look are refused, with any number of ranks, in words."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ddp_trainer
import pytest
import torch
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.library import join as joining
from torch import distributed as dist
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset

from tests.trainer.habits.registry import loader, loss_of, network, sgd, train


@pytest.fixture(autouse=True)
def _without_launcher(no_launcher: None, monkeypatch: pytest.MonkeyPatch) -> None:
    del no_launcher
    monkeypatch.setattr(joining, "_joined", set())


def refused(text: str) -> Any:
    return pytest.raises(ConfigurationError, match=text)


class NoamOpt:
    """The wrapper of the Annotated Transformer, and many like it."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups

    def step(self) -> None:
        self.optimizer.step()

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state)


def test_a_wrapped_optimizer_is_refused_by_name(caplog: pytest.LogCaptureFixture) -> None:
    model = network()
    with (
        pytest.raises(SystemExit) as ended,
        ddp_trainer.join(model=model, optimizer=NoamOpt(sgd(model)), checkpoint_dir=""),
    ):
        pytest.fail("it joined")
    assert ended.value.code == 64
    assert "optimizer is a NoamOpt, which is no torch.optim.Optimizer" in caplog.text


def test_training_without_an_optimizer_is_refused() -> None:
    model = network()
    with ddp_trainer.join(model=model, checkpoint_dir="") as job:
        job.wrap(model)
        with refused(r"got no optimizer, so nothing would be trained: name it"):
            next(job.batches(loader()))


def test_a_forgotten_optimizer_of_two_is_refused_by_parameter() -> None:
    make, judge = nn.Linear(6, 6), nn.Linear(6, 1)
    with ddp_trainer.join(make=make, judge=judge, of_make=sgd(make), checkpoint_dir="") as job:
        job.wrap(make), job.wrap(judge)
        with refused(r"no optimizer of join\(\) has judge\.bias, so it would not be trained: give"):
            next(job.batches(loader()))


def test_a_forgotten_wrap_is_refused() -> None:
    model = network()
    with (
        ddp_trainer.join(model=model, optimizer=sgd(model), checkpoint_dir="") as job,
        refused(r"SGD trains model\.0\.weight, .* as in net = job\.wrap\(model\), and call"),
    ):
        next(job.batches(loader()))


def test_a_parameter_of_no_model_is_refused() -> None:
    model, temperature = network(), nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([*model.parameters(), temperature], lr=0.1)
    with ddp_trainer.join(model=model, optimizer=optimizer, checkpoint_dir="") as job:
        job.wrap(model)
        with refused(r"a parameter of shape \[3\], which no model of join\(\) has: make it a part"):
            next(job.batches(loader()))


def test_a_call_of_the_inner_model_is_refused() -> None:
    model = network()
    with ddp_trainer.join(model=model, optimizer=sgd(model), checkpoint_dir="") as job:
        job.wrap(model)
        for inputs, targets in job.batches(loader()):
            loss_of(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
            with refused(r"0\.weight has a gradient that was not averaged .* the model itself"):
                job.step()
            break


def test_a_static_graph_with_accumulation_is_refused() -> None:
    model = network()
    with ddp_trainer.join(model=model, optimizer=sgd(model), checkpoint_dir="") as job:
        job.wrap(model, static_graph=True)
        with refused("a static graph cannot accumulate batches"):
            next(job.batches(loader(), accumulate=2))


@pytest.mark.parametrize(
    ("factor", "first_rate", "warns"), [(0, 1, True), (1, 1, False), (0, 0, False)]
)
def test_a_first_step_that_changes_nothing_is_told(
    factor: float, first_rate: float, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A warm-up may begin at 0, so this is no error."""
    model = network()
    optimizer = sgd(model)
    scheduler = LambdaLR(optimizer, lambda step: first_rate if step == 0 else 1.0)
    with ddp_trainer.join(
        model=model, optimizer=optimizer, scheduler=scheduler, checkpoint_dir=""
    ) as job:
        net = job.wrap(model)
        for inputs, targets in job.batches(loader()):
            (factor * loss_of(net(inputs), targets)).backward()  # type: ignore[no-untyped-call]
            job.step()
    assert ("first step of the SGD has changed no parameter" in caplog.text) is warns


class Prefetcher(DataLoader[Any]):
    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        for inputs, targets in super().__iter__():
            yield inputs / 2, targets


def test_a_loader_with_an_iterator_of_its_own_is_refused() -> None:
    model = network()
    samples = Prefetcher(loader().dataset, batch_size=4)
    with ddp_trainer.join(model=model, optimizer=sgd(model), checkpoint_dir="") as job:
        job.wrap(model)
        with refused(r"is a Prefetcher, which has its own __iter__\(\): .* Do it in a collate_fn"):
            next(job.batches(samples))
        with refused(r"is a Prefetcher, which has its own __iter__\(\)"):
            next(job.share(samples))


@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_a_step_of_a_scheduler_by_the_script_is_refused(interval: Any) -> None:
    model = network()
    optimizer = sgd(model)
    scheduler = LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
    with ddp_trainer.join(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        scheduler_interval=interval,
        checkpoint_dir="",
    ) as job:
        with refused(r"scheduler\.step\(\) was called: remove it"):
            train(job, job.wrap(model), after=lambda *_: scheduler.step())
        assert job.steps_done == 1


def test_a_plateau_stepped_by_the_script_is_refused() -> None:
    model = network()
    optimizer = sgd(model)
    plateau = ReduceLROnPlateau(optimizer)
    with ddp_trainer.join(
        model=model, optimizer=optimizer, plateau=plateau, checkpoint_dir=""
    ) as job:
        net = job.wrap(model)
        train(job, net, epochs=1)
        job.evaluated(0.5)
        plateau.step(0.5)
        with refused(r"scheduler\.step\(\) was called"):
            train(job, net)


def test_an_optimizer_stepped_by_the_script_is_refused() -> None:
    model = network()
    optimizer = sgd(model)
    with (
        ddp_trainer.join(model=model, optimizer=optimizer, checkpoint_dir="") as job,
        refused(r"optimizer\.step\(\) was called: call job\.step\(\) instead"),
    ):
        train(job, job.wrap(model), after=lambda *_: optimizer.step())


@pytest.mark.parametrize("norm", [0.0, -1.0, float("nan")])
def test_a_norm_that_clears_all_gradients_is_refused(norm: float) -> None:
    model = network()
    with ddp_trainer.join(model=model, optimizer=sgd(model), checkpoint_dir="") as job:
        net = job.wrap(model)
        for inputs, targets in job.batches(loader()):
            loss_of(net(inputs), targets).backward()  # type: ignore[no-untyped-call]
            with refused(f"clip_grad_norm={norm:g}, which would clear all gradients: leave it out"):
                job.step(clip_grad_norm=norm)
            break


@pytest.mark.parametrize("through_data", [False, True])
def test_weights_loaded_after_the_join_are_refused(through_data: bool) -> None:
    model, trained = network(), network()
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.fill_(1)
    with ddp_trainer.join(model=model, optimizer=sgd(model), checkpoint_dir="") as job:
        net = job.wrap(model)
        if through_data:
            first = next(model.parameters())
            first.data = torch.ones_like(first)
        else:
            model.load_state_dict(trained.state_dict())
        with refused(r"^0\.weight was changed after join\(\) .* do that before join\(\)"):
            train(job, net)


def test_another_memory_format_is_no_change() -> None:
    model = nn.Sequential(nn.Conv2d(2, 2, 2), nn.Flatten(), nn.Linear(2, 3))
    images = TensorDataset(torch.randn(8, 2, 2, 2), torch.arange(8) % 3)
    with ddp_trainer.join(model=model, optimizer=sgd(model), checkpoint_dir="") as job:
        net = job.wrap(model.to(memory_format=torch.channels_last))  # type: ignore[call-overload]
        train(job, net, DataLoader(images, batch_size=4), epochs=1)
        assert job.steps_done == 2


def test_epochs_counted_by_the_script_are_refused() -> None:
    model = network()
    with ddp_trainer.join(model=model, optimizer=sgd(model), checkpoint_dir="") as job:
        net = job.wrap(model)

        def epoch() -> None:
            for inputs, targets in job.batches(loader()):
                loss_of(net(inputs), targets).backward()  # type: ignore[no-untyped-call]
                job.step()

        epoch()
        with refused(r"called again in an epoch that has ended: loop over job\.epochs\(\)"):
            epoch()


@pytest.mark.parametrize("wrapped", [iter, list])
def test_an_iterator_in_place_of_a_loader_is_refused(wrapped: Any) -> None:
    model = network()
    with ddp_trainer.join(model=model, optimizer=sgd(model), checkpoint_dir="") as job:
        job.wrap(model)
        for read in (job.batches, job.share):
            with refused(r"cannot be read again after a lost rank: give a DataLoader"):
                next(read(wrapped(loader())))


def _train(**settings: Any) -> None:
    model = network()
    with ddp_trainer.join(model=model, optimizer=sgd(model), **settings) as job:
        train(job, job.wrap(model), epochs=1)


def test_trainings_of_one_process_follow_each_other(tmp_path: Path) -> None:
    _train(checkpoint_dir="")
    _train(checkpoint_dir=tmp_path / "one")
    _train(checkpoint_dir=tmp_path / "two")


def test_checkpoints_of_an_ended_training_are_not_those_of_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _train(checkpoint_dir=tmp_path)
    with pytest.raises(SystemExit) as ended:
        _train(checkpoint_dir=tmp_path)
    assert ended.value.code == 64
    assert "which are of a training that has ended in this process: choose another" in caplog.text


def test_ranks_join_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(joining, "_joined", {""})
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "0")
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29999")
    with pytest.raises(SystemExit) as ended:
        _train(checkpoint_dir="")
    assert ended.value.code == 64
    assert "the ranks of a job meet only once: train all parts in one `with` block" in caplog.text


# What a script does after its training.


def test_the_process_group_may_be_destroyed_after_the_training() -> None:
    _train(checkpoint_dir="")
    assert dist.is_initialized()
    assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
    with pytest.raises(RuntimeError, match=r"call collectives of torch\.distributed within the"):
        dist.barrier()
    dist.destroy_process_group()
    assert not dist.is_initialized()
    _train(checkpoint_dir="")


@pytest.fixture
def handled() -> Iterator[list[int]]:
    """Signals that the script's own handler has received."""
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    yield seen
    signal.signal(signal.SIGTERM, before)


def test_signals_have_their_effect_again_after_the_training(handled: list[int]) -> None:
    own, of_python = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    _train(checkpoint_dir="")
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == (own, of_python)
    assert handled == []


def _signalled(numbers: Sequence[int], *, in_epoch: int | None) -> None:
    """Train, and send this process signals before any epoch or after one of them."""
    model = network()
    with ddp_trainer.join(model=model, optimizer=sgd(model), checkpoint_dir="") as job:
        net = job.wrap(model)
        for number in numbers if in_epoch is None else ():
            os.kill(os.getpid(), number)
        for epoch in job.epochs(3):
            _begun.append(epoch)
            for inputs, targets in job.batches(loader()):
                loss_of(net(inputs), targets).backward()  # type: ignore[no-untyped-call]
                job.step()
            for number in numbers if in_epoch == epoch else ():
                os.kill(os.getpid(), number)


_begun: list[int] = []
"""Epochs that began since a test cleared it."""


def test_a_handler_of_the_script_is_called_too(handled: list[int]) -> None:
    with pytest.raises(SystemExit) as ended:
        _signalled([signal.SIGTERM], in_epoch=None)
    assert (handled, ended.value.code) == ([signal.SIGTERM], 143)


@pytest.fixture
def _interrupts() -> Iterator[None]:
    """Handle Ctrl-C as in a terminal: in the background of a shell it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interrupts")
def test_a_second_interrupt_ends_the_script_at_once() -> None:
    with pytest.raises(KeyboardInterrupt):
        _signalled([signal.SIGINT] * 2, in_epoch=None)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("_interrupts")
def test_an_ignored_interrupt_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _begun.clear()
    _signalled([signal.SIGINT] * 2, in_epoch=None)
    assert _begun == [0, 1, 2]


def test_a_signal_during_an_evaluation_stops_before_the_next_epoch() -> None:
    _begun.clear()
    with pytest.raises(SystemExit) as ended:
        _signalled([signal.SIGTERM], in_epoch=0)
    assert (_begun, ended.value.code) == ([0], 143)


def test_a_thread_can_train(caplog: pytest.LogCaptureFixture) -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            _train(checkpoint_dir="")
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(120)
    assert not errors
    assert "join() was not called in the main thread: SIGTERM will end this process" in caplog.text
