"""Functions that can be sent, and the errors for others."""

# ruff: noqa: PLC0415 - functions that are sent import what they need

import functools
import json
import linecache
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ddp_client.sdk.errors import FunctionError
from ddp_client.sdk.function import MAX_BYTES, script_of

OUTSIDE = 3


def result_of(function: Callable[..., object], path: Path, **arguments: Any) -> Any:
    """Run the function's script, and return the content of its output file."""
    script, out = path / "script.py", path / "out"
    script.write_text(script_of(function, {"out": str(out), **arguments}))
    runpy.run_path(str(script), run_name="__main__")
    return json.loads(out.read_text())


def complete(out: str, factor: float = 2.0, names: list[str] | None = None) -> None:
    """A function that needs nothing from outside."""
    import json
    from pathlib import Path

    global counted  # noqa: PLW0603
    counted = 1  # type: ignore[name-defined]

    def scaled(value: float) -> float:
        return value * factor

    class Model:
        size: int = 4

    found = [scaled(x) for x in range(3)]
    said = [found, names, Model.size, counted, __name__]  # type: ignore[name-defined]
    Path(out).write_text(json.dumps(said))


def test_self_contained_function_runs(tmp_path: Path) -> None:
    names = ['it\'s "quoted"', "\\n", "ü\u2028"]
    assert result_of(complete, tmp_path, factor=3, names=names) == [
        *([0, 3, 6], names, 4, 1, "__main__"),
    ]


def test_a_function_within_another_is_dedented(tmp_path: Path) -> None:
    def inner(out: str) -> None:
        from pathlib import Path

        text = """
  as it stands"""
        Path(out).write_text(f'"{len(text)}"')

    assert result_of(inner, tmp_path) == "15"


def test_script_runs_only_as_a_program(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(script_of(complete, {"out": "/nowhere/at/all"}))
    assert "complete" in runpy.run_path(str(script), run_name="imported")


def test_a_cell_of_a_notebook(tmp_path: Path) -> None:
    cell = "def f(out: str) -> None:\n    with open(out, 'w') as file:\n        file.write('7')\n"
    name = "/tmp/ipykernel_1/2.py"  # a file that does not exist
    linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
    made: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(cell, name, "exec"), made)
    assert result_of(made["f"], tmp_path) == 7


def test_changed_source_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "changing.py"
    file.write_text("def f() -> None:\n    pass\n")
    loaded = runpy.run_path(str(file))["f"]
    file.write_text("def other() -> None:\n    pass\n")
    with pytest.raises(FunctionError, match="reload the module"):
        script_of(loaded, {})


def test_annotations_are_read_as_in_their_module(tmp_path: Path) -> None:
    source = "def f(out: Missing) -> Missing:\n    open(out, 'w').write('1')\n"
    (tmp_path / "late.py").write_text(f"from __future__ import annotations\n{source}")
    late = runpy.run_path(str(tmp_path / "late.py"))["f"]
    assert result_of(late, tmp_path) == 1
    (tmp_path / "early.py").write_text(f"class Missing: pass\n{source}")
    early = runpy.run_path(str(tmp_path / "early.py"))["f"]
    with pytest.raises(FunctionError, match="uses Missing from outside"):
        script_of(early, {"out": ""})


def uses_outside() -> None:
    print(OUTSIDE, json.dumps(1))


def outside_default(value: int = OUTSIDE) -> None:
    print(value)


def deep() -> None:
    class Model:
        def forward(self) -> object:
            return [Path(x) for x in "ab"]

    Model()


async def awaited() -> None:
    pass


@functools.cache
def cached() -> None:
    pass


@functools.wraps(complete)
def wrapped() -> None:
    pass


def kept(function: Callable[..., object]) -> Callable[..., object]:
    return function


@kept
def decorated() -> None:
    pass


def closure() -> Callable[..., object]:
    rate = 0.1

    def train() -> None:
        print(rate)

    return train


class Trainer:
    def train(self) -> None:
        pass


exec_made: dict[str, Any] = {}
exec("def typed(): pass", exec_made)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (uses_outside, "uses OUTSIDE, json from outside"),
        (outside_default, "uses OUTSIDE from outside"),
        (deep, "uses Path from outside"),
        (awaited, "write a plain one"),
        (cached, "only a function written with def"),
        (wrapped, "a decorated function cannot be sent"),
        (decorated, "a decorated function cannot be sent"),
        (closure(), "it uses rate of the function around it"),
        (lambda: None, "can be sent; a lambda, method"),
        (Trainer().train, "a lambda, method"),
        (Trainer.train, "a lambda, method"),
        (Trainer, "method, class"),
        (functools.partial(uses_outside), "method, class, partial"),
        (print, "only a function written with def"),
        (exec_made["typed"], "its source cannot be found"),
    ],
    ids=lambda value: value if isinstance(value, str) else getattr(value, "__name__", "other"),
)
def test_unsupported_function_is_refused(function: Callable[..., object], said: str) -> None:
    with pytest.raises(FunctionError, match=said):
        script_of(function, {})


def takes(value: object, other: int = 0) -> None:
    print(value, other)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "missing a required argument: 'value'"),
        ({"value": 1, "third": 2}, "unexpected keyword argument 'third'"),
        ({"value": (1, 2)}, r"argument value cannot be written as JSON \(it has no tuples"),
        ({"value": {1: 2}}, r"argument value cannot be written as JSON \(it has no tuples"),
        ({"value": Path("x")}, "argument value cannot be written as JSON"),
        ({"value": float("nan")}, "argument value cannot be written as JSON"),
        ({"value": "x" * MAX_BYTES}, f"at most {MAX_BYTES}; put large data"),
    ],
)
def test_unsupported_argument_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(FunctionError, match=said):
        script_of(takes, arguments)


def test_builtins_of_a_notebook_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.display", print, raising=False)

    def shows() -> None:
        display(1)  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(FunctionError, match="uses display from outside"):
        script_of(shows, {})
