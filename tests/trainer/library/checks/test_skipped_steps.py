"""Steps with a loss that is NaN or infinite are skipped on all ranks, and change nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import ddp_trainer
import pytest
import torch
from ddp_trainer.exit_codes import ConfigurationError, ExitCode, NonFiniteLossError
from ddp_trainer.library.checks.loss_watch import NonFinite
from ddp_trainer.library.checks.skipped_steps import after_too_many, must_skip
from ddp_trainer.telemetry.history import FILE_NAME
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from tests.trainer.library.checks.skipping import BAD, BY_HAND, MOST, SHARDED, LeavingOut
from tests.trainer.library.runs import run_to_its_end, script_job
from tests.trainer.library.sharded.sharding import NEEDS_TORCH
from tests.trainer.support import fault_injection
from tests.trainer.support.fault_injection import FaultAt
from tests.trainer.support.pods import assert_same

BATCH, BATCHES = 4, 6


class Numbers(Dataset[tuple[Tensor, int]]):
    """Numbered samples; some batches of them, counted from 0 in their order, are bad."""

    def __init__(self, bad: set[int], value: float = float("nan")) -> None:
        self._bad, self._value = bad, value

    def __len__(self) -> int:
        return BATCH * BATCHES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        is_bad = index % BATCH == 1 and index // BATCH in self._bad
        return torch.tensor([self._value if is_bad else index / 8, 1.0]), index


class Stream(IterableDataset[tuple[Tensor, int]]):
    def __init__(self, bad: set[int]) -> None:
        self._numbers = Numbers(bad)

    def __iter__(self) -> Any:
        return map(self._numbers.__getitem__, range(len(self._numbers)))


class Run:
    """A training in this process."""

    def __init__(self, by_hand: set[int] | None = None) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 1)
        )
        self.optimizer = LeavingOut(self.model, by_hand or set())
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.samples: list[list[int]] = []
        """Of each batch."""
        self.taken: list[int] = []

    def train(
        self,
        loader: DataLoader[Any],
        *,
        epochs: int = 1,
        max_steps: int = 0,
        accumulate: int = 1,
        **settings: Any,
    ) -> Run:
        parts = {name: getattr(self, name) for name in ("model", "optimizer", "scheduler")}
        with ddp_trainer.join(**parts, **settings) as job:
            net, self.optimizer.job = job.wrap(self.model), job
            begun = -1
            for _ in job.epochs(epochs, max_steps=max_steps):
                for inputs, indices in job.batches(loader, accumulate=accumulate):
                    if begun != job.steps_done:
                        begun = job.steps_done
                        self.optimizer.begin()
                    self.samples.append(indices.tolist())
                    loss = net(inputs).square().mean() * job.weight
                    loss.backward()
                    if job.step(loss, clip_grad_norm=1.0):
                        self.taken.append(job.steps_done)
                    if job.steps_done > begun:
                        self.optimizer.end()
        return self

    def state(self) -> list[Any]:
        return [part.state_dict() for part in (self.model, self.optimizer, self.scheduler)]


def loader(bad: set[int], value: float = float("nan")) -> DataLoader[Any]:
    return DataLoader(Numbers(bad, value), batch_size=BATCH)


def streaming(bad: set[int]) -> DataLoader[Any]:
    return DataLoader(Stream(bad), batch_size=BATCH)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_the_result_equals_a_training_without_the_step(value: float) -> None:
    """The first and the last step of the epoch, too."""
    bad = {0, 3, 5}
    skipped = Run().train(loader(bad, value), epochs=2, skip_nonfinite_steps=MOST)
    by_hand = Run({1, 4, 6, 7, 10, 12}).train(loader(set()), epochs=2)
    assert_same(skipped.state(), by_hand.state())
    assert skipped.samples == by_hand.samples
    assert skipped.taken == [2, 3, 5, 8, 9, 11]
    assert by_hand.taken == [*range(1, 13)]


@pytest.mark.parametrize(
    "settings",
    [{"accumulate": 2}, {"logical_shards": 2}, {"scheduler_interval": "epoch"}],
    ids=lambda settings: next(iter(settings)),
)
def test_the_whole_step_is_skipped(settings: dict[str, Any]) -> None:
    """Its bad batch is the last one of two, or the first of an epoch."""
    first = "scheduler_interval" in settings
    skipped = Run().train(
        loader({0} if first else {3}), epochs=2, skip_nonfinite_steps=MOST, **settings
    )
    steps = {1, 7} if first else {2, 5}
    by_hand = Run(steps).train(loader(set()), epochs=2, **settings)
    assert_same(skipped.state(), by_hand.state())
    assert set(by_hand.taken) - set(skipped.taken) == steps


def test_a_step_of_a_stream_is_skipped() -> None:
    skipped = Run().train(streaming({2}), skip_nonfinite_steps=MOST)
    by_hand = Run({3}).train(streaming(set()))
    assert_same(skipped.state(), by_hand.state())


def test_a_resumed_training_does_not_repeat_skipped_samples(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"skip_nonfinite_steps": MOST, "checkpoint_dir": tmp_path}
    Run().train(loader({2, 3}), max_steps=4, **settings)
    assert counts(tmp_path) == [(3, 1), (4, 2)]
    (tmp_path / FILE_NAME).unlink()
    resumed = Run().train(loader({2, 3}), **settings)
    assert resumed.taken == [5, 6]
    assert resumed.samples == [[16, 17, 18, 19], [20, 21, 22, 23]]
    assert_same(resumed.state(), Run({3, 4}).train(loader(set())).state())
    assert counts(tmp_path) == [(4, 2)]


def counts(folder: Path) -> list[tuple[int, float]]:
    """Return the reported numbers of skipped steps, each with its step."""
    lines = map(json.loads, (folder / FILE_NAME).read_text().splitlines())
    reported = [line for line in lines if line["kind"] == "metrics"]
    return [(line["step"], line["values"]["skipped_steps"]) for line in reported]


def test_too_many_in_a_row_end_the_training(caplog: pytest.LogCaptureFixture) -> None:
    run = Run()
    with pytest.raises(NonFiniteLossError) as error:
        run.train(loader({0, 1, 3, 4, 5}), skip_nonfinite_steps=MOST)
    assert str(error.value) == (
        "rank 0's loss is nan in step 6 after 2 skipped steps: samples 20, 21, 22, 23"
    )
    assert run.taken == [3]
    assert [record.message for record in caplog.records if "step" in record.message] == [
        f"step {step} is skipped: the loss of rank 0 is nan, samples {samples}"
        for step, samples in (
            (1, "0, 1, 2, 3"),
            (2, "4, 5, 6, 7"),
            (4, "12, 13, 14, 15"),
            (5, "16, 17, 18, 19"),
        )
    ]


@pytest.mark.parametrize(("bad", "done"), [({2, 3, 4}, 4), ({0, 4, 5}, 6)])
def test_a_restart_does_not_count_again(bad: set[int], done: int, tmp_path: Path) -> None:
    """Within an epoch, and after one."""
    settings: dict[str, Any] = {"skip_nonfinite_steps": MOST, "checkpoint_dir": tmp_path}
    Run().train(loader(bad), max_steps=done, **settings)
    with pytest.raises(NonFiniteLossError, match=f"in step {done + 1} after 2 skipped steps"):
        Run().train(loader(bad), epochs=2, **settings)


def test_by_default_all_steps_are_taken() -> None:
    run = Run().train(loader({2}))
    assert run.taken == [*range(1, BATCHES + 1)]
    assert all(parameter.isnan().all() for parameter in run.model.parameters())


def test_a_gradient_scaler_skips_its_own_steps() -> None:
    """A loss that is not finite says nothing about the scale; gradients that are not do."""
    model = nn.Linear(2, 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scales = []
    with ddp_trainer.join(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        scaler=scaler,
        skip_nonfinite_steps=1,
    ) as job:
        net = job.wrap(model)
        for inputs, _ in job.batches(loader({1})):
            before = [parameter.clone() for parameter in model.parameters()]
            loss = net(inputs).square().mean()
            scaler.scale(loss).backward()
            if job.steps_done == 3:
                model.weight.grad.fill_(float("inf"))  # type: ignore[union-attr]
            is_counted = job.step(loss, clip_grad_norm=1.0)
            assert is_counted == (job.steps_done != 2)
            is_same = all(map(torch.equal, before, model.parameters()))
            assert is_same == (job.steps_done in (2, 4))
            scales.append(scaler.get_scale())
    assert scales == [4.0, 4.0, 4.0, 2.0, 2.0, 2.0]


def test_a_step_without_its_loss_or_with_turns_is_refused() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters())
    with ddp_trainer.join(model=model, optimizer=optimizer, skip_nonfinite_steps=1) as job:
        job.wrap(model)
        next(job.batches(loader(set())))
        with pytest.raises(ConfigurationError, match=r"pass it, as in job\.step\(loss\)"):
            job.step()
        with pytest.raises(ConfigurationError, match="remove skip_nonfinite_steps"):
            job.step(1.0, optimizer=optimizer)


def test_messages_are_few_and_short(caplog: pytest.LogCaptureFixture) -> None:
    found = [
        NonFinite(10**9, rank, "-inf", [10**9] * 10, 64) for rank in range(10**5, 10**5 + 1000)
    ]
    assert must_skip(found, in_a_row=0, most=1, logs=False)
    assert not caplog.records
    assert must_skip(found, in_a_row=0, most=1, logs=True)
    assert len(caplog.records) == 9
    assert caplog.records[-1].message == "so are the losses of 992 other ranks"
    assert all(len(record.message) <= 200 for record in caplog.records)
    assert len(after_too_many(found[0], 10)) <= 200


# With processes.


def ends_and_log(
    folder: Path,
    bad: list[tuple[int, int]],
    ranks: int,
    *,
    device: str = "cpu",
    **variables: str,
) -> tuple[list[str], str]:
    folder.mkdir(exist_ok=True)
    variables |= {BAD: json.dumps(bad)}
    with script_job(
        folder, ranks=ranks, device=device, script="bad batches", variables=variables
    ) as job:
        log = run_to_its_end(job, "--epochs", "1").log
        if BY_HAND not in variables:
            for step, rank in bad:
                first = ", ".join(map(str, job.steps_of(rank)[step][:10]))
                what = f"step {step} is skipped: the loss of rank {rank} is nan, samples {first}, …"
                assert what in log
    ends = sorted(re.findall(r"rank \d ends with \w+", log))
    assert len(ends) == ranks, log
    return ends, log


def test_ranks_that_die_in_skipped_steps_end_with_the_same_state(tmp_path: Path) -> None:
    bad = [(1, 0), (4, 1), (4, 2), (8, 2), (9, 2), (15, 0)]
    plan = [
        FaultAt(rank=1, point="after backward", step=4),
        FaultAt(rank=0, point="after the optimizer's step", step=8),
    ]
    faults = fault_injection.environment(plan, tmp_path / "faults")
    ends, log = ends_and_log(tmp_path / "skipped", bad, 3, device="stream", **faults)
    fault_injection.assert_all_happened(plan, tmp_path / "faults", log)
    # By hand on the CPU: a script does not write buffers in the order of a stream.
    expected, _ = ends_and_log(tmp_path / "by hand", bad, 3, **{BY_HAND: "1"})
    assert ends == expected
    assert len({end.split()[-1] for end in ends}) == 1


def test_all_ranks_end_after_too_many(tmp_path: Path) -> None:
    variables = {BAD: json.dumps([[2, 0], [3, 1], [4, 1]])}
    with script_job(tmp_path, ranks=2, script="bad batches", variables=variables) as job:
        [pod] = job.start_all("--max-restarts", "0", "--trace-samples", str(job.traces))
        assert pod.wait() == ExitCode.FAILURE, pod.log
        first = ", ".join(map(str, job.steps_of(1)[4][:10]))
        error = f"rank 1's loss is nan in step 4 after 2 skipped steps: samples {first}, …"
        assert pod.message["error"] == error
        assert [max(job.steps_of(rank)) for rank in range(2)] == [4, 4]


@NEEDS_TORCH
@pytest.mark.nightly
def test_all_parts_of_a_sharded_model_skip_a_step(tmp_path: Path) -> None:
    bad = [(3, 1), (4, 0), (23, 1)]
    ends, _ = ends_and_log(tmp_path / "skipped", bad, 2, **{SHARDED: "1"})
    expected, _ = ends_and_log(tmp_path / "by hand", bad, 2, **{SHARDED: "1", BY_HAND: "1"})
    assert ends == expected
