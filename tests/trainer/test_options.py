"""What the flags of optimization, hardware and DDP do, as far as one process shows it."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator

import pytest
import torch
from ddp_trainer.collectives.compression import PowerSGD
from ddp_trainer.devices.hardware import check_abilities, gpu_of, make_deterministic, prepare_model
from ddp_trainer.devices.precision import gradient_scaler
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.run.optimization import Optimization
from ddp_trainer.run.run import ModelRun, Order, Position
from ddp_trainer.run.schedule import Course, Schedule
from ddp_trainer.settings.options import Options
from ddp_trainer.settings.training import OptimizationOptions
from torch import nn

CPU = torch.device("cpu")
COURSE = Course(epochs=1, epoch_length=10, step_size=1)
HERE = Position()


def optimization(
    model: nn.Module,
    *,
    scaler: torch.amp.GradScaler | None = None,
    clip_grad_norm: float | None = None,
    skip_zero_grads: bool = False,
) -> Optimization:
    """AdamW with much weight decay, at a constant rate."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    constant = OptimizationOptions(schedule="constant")
    return Optimization(
        optimizer,
        Schedule(optimizer, constant, COURSE),
        scaler=scaler,
        clip_grad_norm=clip_grad_norm,
        skip_zero_grads=skip_zero_grads,
    )


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


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--evaluation-batch-size=0"], "--evaluation-batch-size is 0: set it to 1 or more"),
        (["--accumulate-steps=0"], "--accumulate-steps is 0: set it to 1 or more"),
        (["--min-lr-ratio=1.5"], "--min-lr-ratio is 1.5: set it to 1 or less"),
        (["--precision=fp8"], "--precision: invalid choice: 'fp8'"),
        (["--device-ids=0,x"], "'0,x' is not a list of whole numbers, such as 0,2"),
        (["--static-graph", "--find-unused-parameters"], "leave --find-unused-parameters out"),
        (["--powersgd-rank=2"], "--powersgd-rank .* for --gradient-compression powersgd"),
        (["--stage=copy", "--data=/d"], "--stage copy needs --data, .* and --stage-dir"),
        (["--data=/d", "--workload-option=data=/e"], "--data and --workload-option data say"),
        (["--stage-dir=/d"], "--stage-dir is for --stage copy or --stage broadcast"),
    ],
)
def test_flags_that_cannot_be(flags: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Options.parse(flags)


def test_learning_rate_warms_up_and_follows_torchs_cosine() -> None:
    model = nn.Linear(1, 1)
    options = OptimizationOptions(lr=0.1, warmup_steps=4, min_lr_ratio=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
    schedule = Schedule(optimizer, options, Course(epochs=1, epoch_length=24, step_size=1))
    rates = []
    for step in range(25):
        schedule.before_step(Position(step=step, samples=step))
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates[:4] == pytest.approx([0.02, 0.04, 0.06, 0.08])

    torchs = torch.optim.SGD(model.parameters(), lr=options.lr)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(torchs, T_max=20, eta_min=0.01)
    for rate in rates[4:]:
        assert rate == pytest.approx(torchs.param_groups[0]["lr"])
        torchs.step()
        cosine.step()


def test_learning_rate_stays_where_it_ends() -> None:
    model = nn.Linear(1, 1)
    for kind, rate in (("cosine", 0.0), ("constant", 0.1)):
        options = Options.parse([f"--schedule={kind}"]).optimization
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = Schedule(optimizer, options, COURSE)
        schedule.before_step(Position(step=12, epoch=1))
        assert optimizer.param_groups[0]["lr"] == rate


def test_gradients_are_clipped_together() -> None:
    model = nn.Linear(3, 1)  # four numbers
    gradients(model, 10.0)
    optimization(model, clip_grad_norm=1.0).step(HERE)
    norms = [
        parameter.grad.norm() for parameter in model.parameters() if parameter.grad is not None
    ]
    assert torch.stack(norms).norm().item() == pytest.approx(1.0, rel=1e-4)
    gradients(model, 0.1)
    optimization(model, clip_grad_norm=1.0).step(HERE)
    assert model.bias.grad is not None
    assert model.bias.grad.item() == pytest.approx(0.1)


@pytest.mark.parametrize("skip", [True, False])
def test_parameters_with_nothing_but_zeros_for_gradients(skip: bool) -> None:
    model = nn.Linear(2, 2)
    step = optimization(model, skip_zero_grads=skip).step
    gradients(model, 1.0)
    step(HERE)  # from now on the optimizer has a direction of its own
    weight, bias = copies(model)
    assert model.weight.grad is not None
    assert model.bias.grad is not None
    model.weight.grad.zero_()
    model.bias.grad.copy_(torch.tensor([0.0, 1.0]))
    step(HERE)
    assert torch.equal(model.weight, weight) is skip
    assert not torch.equal(model.bias, bias), "a gradient with a single zero counts"


def test_scaled_gradients_are_clipped_at_their_true_size() -> None:
    model, reference = nn.Linear(3, 1), nn.Linear(3, 1)
    reference.load_state_dict(model.state_dict())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaled = optimization(model, scaler=scaler, clip_grad_norm=1.0)
    plain = optimization(reference, clip_grad_norm=1.0)
    inputs = torch.full((4, 3), 5.0)
    for network, using in ((model, scaled), (reference, plain)):
        using.scale(network(inputs).sum()).backward()  # type: ignore[no-untyped-call]
        using.step(HERE)
    for one, other in zip(model.parameters(), reference.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(one.grad, other.grad)
        torch.testing.assert_close(one, other)


def test_a_step_with_infinite_gradients_changes_nothing_but_the_scale() -> None:
    model = nn.Linear(3, 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaled = optimization(model, scaler=scaler)
    before = copies(model)
    scaled.scale(model(torch.ones(1, 3)).sum() * float("inf")).backward()  # type: ignore[no-untyped-call]
    scaled.step(HERE)
    assert all(map(torch.equal, copies(model), before))
    assert scaler.get_scale() == 512.0


def test_the_scaler_is_part_of_the_state() -> None:
    def run(scale: float) -> ModelRun:
        model = nn.Linear(3, 1)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        scaler.scale(torch.zeros(1))  # it takes its scale from the first use
        return ModelRun(
            model=model,
            optimization=optimization(model, scaler=scaler),
            order=Order(seed=0, samples=1),
        )

    saved, fresh = run(4.0), run(1024.0)
    fresh.restore(saved.serialise())
    assert fresh.optimization.scaler is not None
    assert fresh.optimization.scaler.get_scale() == 4.0


def test_powersgd_is_part_of_the_state_and_of_plain_types() -> None:
    saved = PowerSGD(rank=1, start_step=2)
    saved.load_state_dict(
        {
            **saved.state_dict(),
            "steps": 7,
            "left_out": {0: torch.ones(3)},
            "rows": {0: torch.ones(2)},
            "columns": {0: torch.ones(1)},
        }
    )
    buffer = io.BytesIO()
    torch.save(saved.state_dict(), buffer)
    buffer.seek(0)
    fresh = PowerSGD(rank=1, start_step=2)
    fresh.load_state_dict(torch.load(buffer, weights_only=True))
    assert fresh.state_dict()["steps"] == 7
    assert fresh.state_dict()["left_out"][0].tolist() == [1.0, 1.0, 1.0]


def test_only_fp16_needs_a_scaler() -> None:
    assert gradient_scaler("fp32", CPU) is None
    assert gradient_scaler("bf16", CPU) is None
    assert isinstance(gradient_scaler("fp16", CPU), torch.amp.GradScaler)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--precision=fp16"], "--precision fp16 needs a GPU: use bf16 on CPUs"),
        (["--sync-batch-norm"], "--sync-batch-norm needs GPUs"),
        (["--compile=inductor"], "--compile inductor needs a C\\+\\+ compiler"),
    ],
)
def test_what_this_machine_cannot_do(
    flags: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ConfigurationError, match=message):
        check_abilities(Options.parse(flags), CPU)


def test_what_every_machine_can_do() -> None:
    check_abilities(Options.parse(["--precision=bf16", "--compile=aot_eager"]), CPU)
    check_abilities(Options.parse(["--precision=fp16", "--sync-batch-norm"]), torch.device("cuda"))


def test_batch_norm_is_synchronised_when_asked_to() -> None:
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


def test_deterministic_mode_refuses_what_is_not(deterministic: None) -> None:
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
        (4, (0,), "--device-ids 0 must name a GPU of its own for each of the 2 processes"),
        (4, (1, 1), "--device-ids 1,1 must name a GPU of its own"),
        (2, (0, 2), "--device-ids 0,2: 2 are visible, counted from 0"),
        (2, (0, -1), "--device-ids 0,-1: 2 are visible"),
    ],
)
def test_too_few_gpus(gpus: int, ids: tuple[int, ...] | None, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        gpu_of(0, local_world_size=2, gpus=gpus, device_ids=ids)
