import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from click.testing import CliRunner
from ddp_client.cli import __main__ as entry
from ddp_operator import __version__

ROOT = Path(__file__).parents[3]
PROJECTS = {
    name: tomllib.loads((ROOT / name / "pyproject.toml").read_text())["project"]
    for name in ("operator", "client", "trainer-image")
}


def test_all_distributions_have_one_version() -> None:
    assert {project["version"] for project in PROJECTS.values()} == {__version__}
    assert f"ddp-operator=={__version__}" in PROJECTS["client"]["dependencies"]


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
