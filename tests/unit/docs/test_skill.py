"""The skill for assistants: each command in it is one that the program accepts."""

import re
import shlex
from pathlib import Path

import click
import pytest
import yaml
from ddp_client.cli.__main__ import program

SKILL = Path("skills/ddpjob/SKILL.md")
TEXT = SKILL.read_text()
COMMANDS = sorted(set(re.findall(r"`kubectl ddp ([^`]+)`", TEXT)))
CHANGING = {"run", "stop", "resume", "restart", "scale", "delete"}


@pytest.mark.parametrize("line", COMMANDS)
def test_command_is_accepted(line: str) -> None:
    name, *arguments = shlex.split(line.replace("NAME", "job").replace(" N", " 2"))
    with click.Context(program) as context:
        program.commands[name].make_context(name, arguments, parent=context)


def test_front_matter_is_valid() -> None:
    front = yaml.safe_load(TEXT.split("---")[1])
    assert front.keys() == {"name", "description"}
    assert front["name"] == SKILL.parent.name
    assert len(front["description"]) <= 1024


def test_skill_has_the_main_commands() -> None:
    assert {line.split()[0] for line in COMMANDS} >= CHANGING | {"why", "status", "logs", "stacks"}
