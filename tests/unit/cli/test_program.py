import os
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from click.testing import CliRunner
from ddp_client.cli import __main__ as entry
from ddp_client.cli.group import GROUPS, MEANT
from ddp_operator import __version__

ROOT = Path(__file__).parents[3]
PROJECTS = {
    name: tomllib.loads((ROOT / name / "pyproject.toml").read_text())["project"]
    for name in ("protocol", "operator", "client", "trainer-image")
}


def test_all_distributions_have_one_version() -> None:
    assert {project["version"] for project in PROJECTS.values()} == {__version__}
    assert f"ddp-operator=={__version__}" in PROJECTS["client"]["dependencies"]
    for name in ("operator", "client", "trainer-image"):
        assert f"ddp-protocol=={__version__}" in PROJECTS[name]["dependencies"]


def test_entry_points() -> None:
    scripts = PROJECTS["client"]["scripts"]
    assert scripts.keys() == {"ddp", "kubectl-ddp", "kubectl_complete-ddp"}
    wanted = {
        **dict.fromkeys(scripts, entry.main),
        "kubectl_complete-ddp": entry.kubectl_completion,
    }
    for name, value in scripts.items():
        assert EntryPoint(name, value, "console_scripts").load() is wanted[name]


@pytest.mark.parametrize(
    ("called", "usage"), [("ddp", "ddp"), ("kubectl-ddp", "kubectl ddp"), ("x", "kubectl ddp")]
)
def test_help_uses_the_name_of_the_program(
    called: str, usage: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [f"/usr/bin/{called}", "--help"])
    monkeypatch.setattr("sys.setrecursionlimit", lambda _: None)
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"Usage: {usage} ")


@pytest.mark.parametrize("command", entry.program.commands)
def test_help_of_each_command_fits_80_columns(command: str) -> None:
    result = CliRunner().invoke(entry.program, [command, "--help"])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert len(lines[2]) > 20
    assert max(map(len, lines)) <= 80


def test_groups_list_each_command_with_its_own_summary() -> None:
    listed = {name: said for group in GROUPS.values() for name, (_, said) in group.items()}
    assert listed.keys() == entry.program.commands.keys()
    text = CliRunner().invoke(entry.program, ["--help"]).stdout
    for group in GROUPS:
        assert f"\n{group}:\n" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("top", "use ddp status --watch"),
        ("rm", "use ddp delete"),
        ("get", "use ddp list"),
        ("suspend", "use ddp stop"),
        ("stpo", "see ddp --help"),
    ],
)
def test_word_of_another_tool_names_our_command(word: str, hint: str) -> None:
    result = CliRunner().invoke(entry.program, [word, "x"], prog_name="ddp")
    assert result.exit_code == 2
    assert f"'{word}' is no command: {hint}" in result.stderr


def test_words_of_other_tools_lead_to_existing_commands() -> None:
    ours = {*entry.program.commands, "--version", "--help"}
    assert {meant.split()[0] for meant in MEANT.values()} <= ours
    assert not MEANT.keys() & entry.program.commands.keys()


_LIGHT = """
import sys
from ddp_client.cli.__main__ import program
from ddp_client.cli.commands.completion import complete_for_kubectl
try:
    program(["--version"])
except SystemExit:
    pass
assert "status" in str(complete_for_kubectl(program, ["st"]))
assert "resnet" in complete_for_kubectl(program, ["-n", "research", "logs", "res"])
heavy = {"kubernetes", "aiohttp", "pydantic", "kopf", "yaml", "asyncio", "ddp_client.remote"}
print(sorted(heavy & sys.modules.keys()))
"""


def test_version_and_completion_load_no_client(tmp_path: Path) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text("#!/bin/sh\necho resnet   Running\n")
    kubectl.chmod(0o755)
    ended = subprocess.run(
        [sys.executable, "-c", _LIGHT],
        env={**os.environ, "PATH": f"{tmp_path}:/bin"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert ended.stdout.splitlines()[-1] == "[]"
