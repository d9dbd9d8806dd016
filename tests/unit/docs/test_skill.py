"""The skill for assistants: each command in it is one that the program accepts."""

import re
import shlex
from pathlib import Path

import click
import pytest
import yaml
from ddp_operator.cli.__main__ import program

SKILL = Path("skills/ddpjob/SKILL.md")
TEXT = SKILL.read_text()
COMMANDS = sorted(set(re.findall(r"`kubectl ddp ([^`]+)`", TEXT)))
CHANGING = {"run", "stop", "resume", "restart", "scale", "delete"}


@pytest.mark.parametrize("line", COMMANDS)
def test_the_program_accepts_the_command(line: str) -> None:
    name, *arguments = shlex.split(line.replace("NAME", "job").replace(" N", " 2"))
    with click.Context(program) as context:
        program.commands[name].make_context(name, arguments, parent=context)


def test_the_front_matter_names_the_folder_and_says_when_to_use_it() -> None:
    front = yaml.safe_load(TEXT.split("---")[1])
    assert front.keys() == {"name", "description"}
    assert front["name"] == SKILL.parent.name
    assert len(front["description"]) <= 1024


def test_most_commands_of_the_program_are_in_it() -> None:
    assert {line.split()[0] for line in COMMANDS} >= CHANGING | {"why", "status", "logs", "stacks"}
