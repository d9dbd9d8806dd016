"""Effects of the flags of optimization, hardware and DDP in a single process."""

from __future__ import annotations

import copy
import os
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from ddp_trainer.devices.hardware import check_abilities, gpu_of, make_deterministic, prepare_model
from ddp_trainer.devices.precision import gradient_scaler
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.loop.optimization import optimizer_of
from ddp_trainer.loop.schedule import Course, Schedule
from ddp_trainer.run.position import Position
from ddp_trainer.run.train_state import TrainState
from ddp_trainer.settings.options import Options
from ddp_trainer.settings.training import OptimizationOptions
from torch import nn

from tests.trainer.loop.test_schedule import workload

CPU = torch.device("cpu")
COURSE = Course(epochs=1, epoch_length=10, step_size=1)


class Steps:
    """Steps of AdamW with much weight decay, at a constant rate."""

    def __init__(
        self,
        model: nn.Module,
        *flags: str,
        scaler: torch.amp.GradScaler | None = None,
        clip_grad_norm: float | None = None,
    ) -> None:
        options = Options.parse(["--lr=0.1", *flags]).optimization
        optimizer = optimizer_of(workload(), model, options)
        for group in optimizer.param_groups:
            group["weight_decay"] = 0.5
        parts = {"model": model, "optimizer": optimizer, "scaler": scaler}
        self.run = TrainState({k: part for k, part in parts.items() if part}, seed=0, device=CPU)
        self._scaler = scaler
        self._clip_grad_norm = clip_grad_norm
        self.gradients: list[torch.Tensor] = []
        """Gradients of the last step."""
        optimizer.register_step_pre_hook(self._look)

    def backward(self, loss: torch.Tensor) -> None:
        (loss if self._scaler is None else self._scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]

    def take(self) -> None:
        self.run.updates.complete_step(1, clip_grad_norm=self._clip_grad_norm)

    def _look(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.gradients = [p.grad.clone() for p in parameters if p.grad is not None]


def gradients(model: nn.Module, value: float) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, value)


def copies(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_flags_reach_their_options() -> None:
    options = Options.parse(
        [
            *("--lr=0.5", "--warmup-steps=3", "--clip-grad-norm=2", "--precision=bf16"),
            *("--accumulate-steps=4", "--batch-size=8", "--no-broadcast-buffers"),
            *("--device-ids=2,0", "--compile=eager", "--deterministic", "--bucket-cap-mb=0.5"),
        ]
    )
    assert options.optimization == OptimizationOptions(
        lr=0.5, warmup_steps=3, clip_grad_norm=2.0, precision="bf16", accumulate_steps=4
    )
    assert options.step_size == 32
    assert options.evaluation_batch_size == 8
    assert Options.parse(["--evaluation-batch-size=9"]).evaluation_batch_size == 9
    assert (options.ddp.broadcast_buffers, options.ddp.gradient_as_bucket_view) == (False, True)
    assert options.ddp.bucket_cap_mb == 0.5
    assert options.hardware.device_ids == (2, 0)
    assert (options.hardware.compile, options.hardware.deterministic) == ("eager", True)


def test_learning_rate_warms_up_and_follows_torchs_cosine() -> None:
    model = nn.Linear(1, 1)
    options = OptimizationOptions(lr=0.1, warmup_steps=4, min_lr_ratio=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
    schedule = Schedule(optimizer, options, Course(epochs=1, epoch_length=24, step_size=1))
    rates = []
    for step in range(25):
        schedule.set_rates(Position(step=step, samples=step))
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates[:4] == pytest.approx([0.02, 0.04, 0.06, 0.08])

    torchs = torch.optim.SGD(model.parameters(), lr=options.lr)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(torchs, T_max=20, eta_min=0.01)
    for rate in rates[4:]:
        assert rate == pytest.approx(torchs.param_groups[0]["lr"])
        torchs.step()
        cosine.step()


def test_the_learning_rate_stays_at_its_last_value() -> None:
    model = nn.Linear(1, 1)
    for kind, rate in (("cosine", 0.0), ("constant", 0.1)):
        options = Options.parse([f"--schedule={kind}"]).optimization
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = Schedule(optimizer, options, COURSE)
        schedule.set_rates(Position(step=12, epoch=1))
        assert optimizer.param_groups[0]["lr"] == rate


def test_gradients_are_clipped_together() -> None:
    model = nn.Linear(3, 1)  # four numbers
    steps = Steps(model, clip_grad_norm=1.0)
    gradients(model, 10.0)
    steps.take()
    norm = torch.stack([gradient.norm() for gradient in steps.gradients]).norm().item()
    assert norm == pytest.approx(1.0, rel=1e-4)
    gradients(model, 0.1)
    steps.take()
    assert [gradient.max().item() for gradient in steps.gradients] == pytest.approx([0.1, 0.1])


@pytest.mark.parametrize("skip", [True, False])
def test_parameters_with_zero_gradients_may_be_skipped(skip: bool) -> None:
    model = nn.Linear(2, 2)
    steps = Steps(model, "--skip-zero-grads" if skip else "--no-skip-zero-grads")
    gradients(model, 1.0)
    steps.take()  # from now on the optimizer has a direction of its own
    weight, bias = copies(model)
    gradients(model, 0.0)
    model.bias.grad = torch.tensor([0.0, 1.0])
    steps.take()
    assert torch.equal(model.weight, weight) is skip
    assert not torch.equal(model.bias, bias), "a gradient with a single zero counts"


def test_scaled_gradients_are_clipped_at_their_true_size() -> None:
    model, reference = nn.Linear(3, 1), nn.Linear(3, 1)
    reference.load_state_dict(model.state_dict())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaled = Steps(model, scaler=scaler, clip_grad_norm=1.0)
    plain = Steps(reference, clip_grad_norm=1.0)
    inputs = torch.full((4, 3), 5.0)
    for network, steps in ((model, scaled), (reference, plain)):
        steps.backward(network(inputs).sum())
        steps.take()
    torch.testing.assert_close(scaled.gradients, plain.gradients)
    torch.testing.assert_close(model.state_dict(), reference.state_dict())


def test_a_step_with_infinite_gradients_changes_nothing_but_the_scale() -> None:
    model = nn.Linear(3, 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    steps = Steps(model, scaler=scaler)
    before = copies(model)
    steps.backward(model(torch.ones(1, 3)).sum() * float("inf"))
    steps.take()
    assert all(map(torch.equal, copies(model), before))
    assert scaler.get_scale() == 512.0


def test_a_step_that_overflows_moves_no_scheduler() -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    run = TrainState(parts, seed=0, device=CPU)
    for factor, rate in ((float("inf"), 1.0), (1.0, 0.1)):
        scaler.scale(model(torch.ones(1, 3)).sum() * factor).backward()
        run.updates.complete_step(1)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(rate)


def test_the_scaler_is_part_of_the_state() -> None:
    def scaler(scale: float) -> torch.amp.GradScaler:
        made = torch.amp.GradScaler("cpu", init_scale=scale)
        made.scale(torch.zeros(1))  # it takes its scale from the first use
        return made

    saved, fresh = scaler(4.0), scaler(1024.0)
    state = Steps(nn.Linear(3, 1), scaler=saved).run.full_state_dict()
    Steps(nn.Linear(3, 1), scaler=fresh).run.load_state_dict(copy.deepcopy(state))
    assert fresh.get_scale() == 4.0
    Steps(nn.Linear(3, 1)).run.load_state_dict(copy.deepcopy(state))  # and may be left out


def test_only_fp16_needs_a_scaler() -> None:
    assert gradient_scaler("fp32", CPU) is None
    assert gradient_scaler("bf16", CPU) is None
    assert isinstance(gradient_scaler("fp16", CPU), torch.amp.GradScaler)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--precision=fp16"], "--precision fp16 needs a GPU: use bf16 on CPUs"),
        (["--sync-batch-norm"], "--sync-batch-norm needs GPUs"),
    ],
)
def test_options_that_need_a_gpu_are_refused_on_a_cpu(flags: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_abilities(Options.parse(flags), CPU)


@pytest.mark.parametrize(
    ("device", "compiler", "variable"),
    [("cpu", "g++", "CXX"), ("cuda", "gcc", "CC")],
)
def test_missing_tools_to_compile_are_named(
    device: str, compiler: str, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Options.parse(["--compile=inductor"])
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    lacking = f"compiler ({compiler}, or one that {variable} names) and Python's headers"
    with pytest.raises(ConfigurationError, match=re.escape(lacking)):
        check_abilities(options, torch.device(device))
    tmp_path.joinpath(compiler).touch(mode=0o755)
    with pytest.raises(ConfigurationError, match=r"needs Python's headers \(python3-dev\), which"):
        check_abilities(options, torch.device(device))
    tmp_path.joinpath("Python.h").touch()
    check_abilities(options, torch.device(device))
    monkeypatch.setenv(variable, "nothing-of-this-name")
    with pytest.raises(ConfigurationError, match=re.escape(f"compiler ({compiler}, or one")):
        check_abilities(options, torch.device(device))


def test_other_options_are_allowed() -> None:
    check_abilities(Options.parse(["--precision=bf16", "--compile=aot_eager"]), CPU)
    check_abilities(Options.parse(["--precision=fp16", "--sync-batch-norm"]), torch.device("cuda"))


def test_batch_norm_is_synchronised_by_its_flag() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm2d(2))
    plain = prepare_model(model, Options.parse([]), CPU)
    assert not any(isinstance(layer, nn.SyncBatchNorm) for layer in plain.modules())
    synchronised = prepare_model(model, Options.parse(["--sync-batch-norm"]), CPU)
    assert sum(isinstance(layer, nn.SyncBatchNorm) for layer in synchronised.modules()) == 2


@pytest.fixture
def deterministic() -> Iterator[None]:
    make_deterministic()
    yield
    torch.use_deterministic_algorithms(False)


def test_deterministic_mode_refuses_other_operations(deterministic: None) -> None:
    assert deterministic is None
    with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
        torch.zeros(2).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


@pytest.mark.parametrize(
    ("local_rank", "world", "gpus", "ids", "gpu"),
    [(1, 2, 2, None, 1), (0, 2, 8, None, 0), (0, 2, 4, (3, 1), 3), (1, 2, 4, (3, 1), 1)],
)
def test_gpu_of_a_local_rank(
    local_rank: int, world: int, gpus: int, ids: tuple[int, ...] | None, gpu: int
) -> None:
    assert gpu_of(local_rank, local_world_size=world, gpus=gpus, device_ids=ids) == gpu


@pytest.mark.parametrize(
    ("gpus", "ids", "message"),
    [
        (1, None, "2 processes in this pod need as many GPUs, but 1 is visible: raise the pod's"),
        (0, None, "but 0 are visible"),
        (4, (0,), "--device-ids 0: name a different GPU for each of the 2 processes"),
        (4, (1, 1), "--device-ids 1,1: name a different GPU"),
        (2, (0, 2), "--device-ids 0,2: 2 are visible, counted from 0"),
        (2, (0, -1), "--device-ids 0,-1: 2 are visible"),
    ],
)
def test_too_few_gpus(gpus: int, ids: tuple[int, ...] | None, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        gpu_of(0, local_world_size=2, gpus=gpus, device_ids=ids)
