"""Commands and manifests on all pages are valid."""

import ast
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
import yaml
from ddp_client.cli.__main__ import program
from ddp_client.local import __main__ as local
from ddp_operator import __main__ as operator
from ddp_operator.api import kubernetes
from ddp_operator.api.constants import API_VERSION, KIND
from ddp_operator.api.job import DDPJob, InvalidJobError

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), ROOT / "manifests/chart/README.md"]
)
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)
_OURS = ("kubectl ddp ", "ddp ")


class Block(NamedTuple):
    """A block of a page, or a line of it."""

    page: str
    text: str


def blocks(kind: str) -> Iterator[Block]:
    for page in PAGES:
        for language, text in _FENCE.findall(page.read_text()):
            if language == kind:
                yield Block(str(page.relative_to(ROOT)), text)


def lines() -> Iterator[Block]:
    """Yield typed commands: the lines after `$`, or all lines of a block without output."""
    for page, text in blocks("console"):
        joined = text.replace("\\\n", " ").splitlines()
        typed = [line[2:] for line in joined if line.startswith("$ ")]
        for line in typed or joined:
            bare = re.sub(r"\s+#.*", "", line).strip()
            if bare:
                yield Block(page, bare)


LINES = [*lines()]
JOBS = [
    Block(page, text)
    for page, text in blocks("yaml")
    if any(isinstance(one, dict) and one.get("kind") == KIND for one in yaml.safe_load_all(text))
]


def named(value: Any) -> str | None:
    return " ".join(value)[:90].replace("\n", " ") if isinstance(value, tuple) else None


def checked(manifest: dict[str, Any]) -> None:
    """Parse a manifest as the operator does, in any namespace."""
    stored = {"namespace": "a", "uid": "u", "creationTimestamp": "2026-11-23T00:00:00Z"}
    DDPJob.parse({**manifest, "metadata": stored | manifest["metadata"]})


def parse_ours(words: list[str]) -> None:
    """Read a line as the program does, and run nothing.

    Raises:
        click.ClickException: it is wrong.
    """
    name, *rest = words
    command = program.get_command(click.Context(program), name)
    if command is None:
        raise click.UsageError(f"no command {name}")
    with pytest.MonkeyPatch.context() as patch:
        for option in command.params:
            if isinstance(option.type, click.Path):  # a page's files are not here
                patch.setattr(option, "type", click.STRING)
        command.make_context(name, rest)


def problem(line: str) -> str:
    """Return the error in a line of a page; empty if there is none that this test can see."""
    ours = next((start for start in _OURS if line.startswith(start)), None)
    words = shlex.split(re.split(r"\s[|>]\s", line)[0])
    if ours:
        try:
            parse_ours(words[len(ours.split()) :])
        except click.ClickException as error:
            return error.format_message()
    elif words[0] == "make":
        targets = re.findall(r"^([a-z0-9-]+):.*##", (ROOT / "Makefile").read_text(), re.M)
        missing = {word for word in words[1:] if "=" not in word} - set(targets)
        return f"no target {missing}" if missing else ""
    elif words[:3] == ["python", "-m", "ddp_operator"]:
        said = StringIO()
        with redirect_stderr(said), redirect_stdout(said), pytest.MonkeyPatch.context() as patch:
            patch.setattr(operator, "_run", lambda _: 0)
            return said.getvalue() if operator.main(words[3:]) else ""
    elif words[:3] == ["python", "-m", "ddp_client.local"]:
        said = StringIO()
        with redirect_stderr(said), redirect_stdout(said), pytest.MonkeyPatch.context() as patch:
            patch.setattr("ddp_client.local.run.command.run", lambda _: 0)
            return said.getvalue() if local.main(words[3:]) else ""
    elif words[0] in ("kubectl", "helm"):
        paths = [word for word in words if word.startswith(("manifests/", "crds/"))]
        missing = {path for path in paths if not (ROOT / path).exists()}
        return f"no such path: {missing}" if missing else ""
    return ""


@pytest.mark.parametrize("line", LINES, ids=named)
def test_command_on_a_page_is_accepted(line: Block) -> None:
    assert problem(line.text) == "", line


@pytest.mark.parametrize("block", JOBS, ids=lambda block: block.page)
def test_job_on_a_page_is_valid(block: Block) -> None:
    for one in yaml.safe_load_all(block.text):
        if one["kind"] == KIND:
            assert one["apiVersion"] == API_VERSION
            checked(one)


def test_blocks_of_yaml_and_python_can_be_parsed() -> None:
    for block in blocks("yaml"):
        assert [*yaml.safe_load_all(block.text)], block
    for block in blocks("python"):
        ast.parse(block.text)


def test_only_one_page_names_the_oldest_kubernetes() -> None:
    """Others name only releases that some feature needs."""
    named = [
        (page.relative_to(ROOT).as_posix(), kubernetes.release(number))
        for page in PAGES
        if page.name != "CHANGELOG.md"
        for number in re.findall(r"Kubernetes (1\.\d+)(?![\d.]*\d)", page.read_text())
    ]
    assert [page for page, number in named if number == kubernetes.OLDEST] == ["docs/install.md"]
    assert all(number and number >= kubernetes.OLDEST for _, number in named)


def test_pages_have_commands_and_jobs() -> None:
    """Of each kind as much as a reader finds."""
    ours = [line for line in LINES if line.text.startswith(_OURS)]
    assert len(ours) >= 25
    assert len(JOBS) >= 6
    assert {"make demo", "make test"} <= {line.text for line in LINES if line.page == "README.md"}


@pytest.mark.parametrize(
    "line",
    [
        "kubectl ddp logz resnet",
        "kubectl ddp logs resnet --sincee 5m",
        "ddp run x --gpus",
        "ddp wait x --for=happy",
        "make everything",
        "python -m ddp_operator run --no-such-flag",
        "kubectl apply -k manifests/nowhere",
    ],
)
def test_wrong_command_is_found(line: str) -> None:
    assert problem(line) != ""


def test_wrong_job_is_found() -> None:
    with pytest.raises(InvalidJobError, match="replica"):
        checked({"metadata": {"name": "x"}, "spec": {"replica": 2}})
