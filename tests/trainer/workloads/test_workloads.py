"""Bundled workloads learn, users name their own, and wrong options get an explanation."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from ddp_trainer import workloads
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.settings.options import Options
from ddp_trainer.workloads.base import MapSamples, Workload
from ddp_trainer.workloads.gpt import GPT, read_text
from torch.utils.data import Dataset

SMALL_GPT = {"layers": "1", "width": "32", "context": "32", "text_bytes": "40000", "dropout": "0"}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Use one thread: several make tiny models slow on busy machines."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def losses(workload: Workload, *, steps: int, batch_size: int = 32) -> list[float]:
    """Train in this process; return the loss of every step."""
    torch.manual_seed(0)
    model = workload.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    found = []
    for step in range(steps):
        first = step * batch_size % (len(workload.train) - batch_size)
        inputs, targets = workload.train.batch(range(first, first + batch_size))
        loss = workload.loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("digits", {}),
        ("gpt", SMALL_GPT),
        ("synthetic", {"samples": "500", "features": "16", "width": "32", "classes": "3"}),
    ],
)
def test_bundled_workloads_learn(name: str, options: dict[str, str]) -> None:
    workload = workloads.load(name, options)
    found = losses(workload, steps=40)
    assert sum(found[-5:]) < 0.75 * sum(found[:5])
    inputs, targets = workload.test.batch(range(20))
    scores = workload.score(workload.model()(inputs), targets)
    assert scores.shape == (20,)
    assert bool(((scores >= 0) & (scores <= 1)).all())


def test_gpt_does_not_see_later_bytes() -> None:
    torch.manual_seed(0)
    model = GPT(layers=2, heads=2, width=16, context=8, dropout=0.0)
    text = torch.randint(256, (1, 8), dtype=torch.uint8)
    other = text.clone()
    other[0, 5:] += 1
    before, after = model(text), model(other)
    assert torch.equal(before[0, :5], after[0, :5])
    assert not torch.allclose(before[0, 5:], after[0, 5:])


def test_gpt_predicts_the_next_byte_and_tests_on_other_text() -> None:
    workload = workloads.load("gpt", SMALL_GPT)
    text = read_text(None, most=40_000)
    parts = [part.batch(range(len(part))) for part in (workload.train, workload.test)]
    inputs, targets = (torch.cat(tensors).flatten() for tensors in zip(*parts, strict=True))
    assert torch.equal(inputs, text[: len(inputs)])
    assert torch.equal(targets, text[1 : len(targets) + 1])
    assert b"import" in bytes(text.numpy())


def test_gpt_reads_any_file(tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_bytes(b"abcdefgh" * 8)
    workload = workloads.load("gpt", {"data": str(file), "context": "3"})
    (inputs, targets) = workload.train.batch([1])
    assert bytes(inputs[0].numpy()) == b"def"
    assert bytes(targets[0].numpy()) == b"efg"


def test_sizes_of_the_synthetic_model() -> None:
    sizes = {"features": "7", "width": "11", "layers": "4", "classes": "3"}
    model = workloads.load("synthetic", sizes).model()
    assert sum(p.numel() for p in model.parameters()) == 8 * 11 + 2 * 12 * 11 + 12 * 3


OWN_WORKLOAD = """
from __future__ import annotations
from pathlib import Path
from dataclasses import replace
from ddp_trainer.workloads import load as bundled
from ddp_trainer.workloads.base import Samples

def make(*, shout: bool = False, scale: float = 1.0, where: Path | None = None, samples: int = 100):
    global made
    made = shout, scale, where
    return bundled("synthetic", {"samples": str(samples)})

def without(*, purpose: str):
    workload = make()
    none = Samples(inputs=workload.test.inputs[:0], targets=workload.test.targets[:0])
    return replace(workload, **{purpose: none})
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a user's module that can be imported."""
    (tmp_path / "own_workload.py").write_text(OWN_WORKLOAD)
    (tmp_path / "own_broken.py").write_text("import a_library_that_is_missing\n")
    monkeypatch.syspath_prepend(tmp_path)
    return "own_workload"


def test_own_workload_gets_typed_options(own_module: str) -> None:
    options = {"shout": "true", "scale": "2.5", "where": "/data", "samples": "50"}
    workload = workloads.load(f"{own_module}:make", options)
    assert importlib.import_module(own_module).made == (True, 2.5, Path("/data"))
    assert len(workload.train) == 45


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "gpt",
            {"depth": "3"},
            "option depth is not an option of workload gpt: .* layers, heads",
        ),
        (
            "digits",
            {"depth": "3"},
            "depth is not an option of workload digits: choose from dropout",
        ),
        ("digits", {"data": "/data"}, "option data is not an option of workload digits"),
        ("gpt", {"layers": "two"}, "--workload-option layers=two: set it to a whole number"),
        ("gpt", {"layers": "0"}, "--workload-option layers=0: set it to 1 or more"),
        ("gpt", {"width": "30"}, "--workload-option width=30: set it to a multiple of heads"),
        ("gpt", {"data": "/nowhere"}, "--workload-option data: .*No such file.*/nowhere"),
        ("gpt", {"data": "/dev/null"}, "there is no text in /dev/null"),
        ("gpt", {"text_bytes": "100"}, "100 bytes of text are too few .* context=64"),
        ("synthetic", {"samples": "9"}, "--workload-option samples=9: set it to 10 or more"),
        ("own_workload:make", {"shout": "loud"}, "shout=loud: set it to true or false"),
        ("own_workload:make", {"scale": "big"}, "scale=big: set it to a number"),
        ("own_workload:mke", {}, "--workload own_workload:mke: own_workload has no function mke"),
        ("own_workload:without", {"purpose": "train"}, "without has no train samples: it needs"),
        ("own_workload:without", {"purpose": "test"}, "without has no test samples: it needs one"),
        ("no.such:thing", {}, "--workload no.such:thing: there is no module no; install it"),
        ("ddp_trainer.none:thing", {}, "there is no module ddp_trainer.none; install it"),
    ],
)
def test_workload_that_cannot_be_loaded_is_explained(
    name: str, options: dict[str, str], message: str, own_module: str
) -> None:
    assert own_module
    with pytest.raises(ConfigurationError, match=message):
        workloads.load(name, options)


def test_failing_import_inside_a_workload_is_its_own_error(own_module: str) -> None:
    assert own_module
    with pytest.raises(ModuleNotFoundError, match="a_library_that_is_missing"):
        workloads.load("own_broken:make")


def test_workload_flags_are_parsed() -> None:
    options = Options.parse(
        ["--workload=a.b:c", "--workload-option=x=1=2", "--workload-option", "y="]
    )
    assert options.workload == "a.b:c"
    assert options.workload_options == {"x": "1=2", "y": ""}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--workload=a.b"], "--workload a.b is unknown: choose from digits, gpt, synthetic, or"),
        (["--workload=a-b:c"], "--workload a-b:c is unknown"),
        (["--workload-option=layers"], "'layers' is not of the form NAME=VALUE"),
    ],
)
def test_bad_workload_flags_are_refused(flags: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Options.parse(flags)


class Squares(Dataset[tuple[torch.Tensor, int]]):
    """A map-style dataset of a user."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((2,), float(index)), index**2


def test_map_style_dataset_has_batches() -> None:
    samples = MapSamples(Squares())
    inputs, targets = samples.batch([3, 1])
    assert inputs.tolist() == [[3.0, 3.0], [1.0, 1.0]]
    assert targets.tolist() == [9, 1]
    assert len(samples) == 10
    padded = MapSamples(Squares(), collate=lambda pairs: (torch.ones(len(pairs)), torch.zeros(1)))
    assert padded.batch([0, 1])[0].shape == (2,)
