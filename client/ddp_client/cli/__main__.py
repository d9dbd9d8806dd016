"""The program: `kubectl ddp`, `ddp` and `python -m ddp_client.cli` are the same."""

import sys
from pathlib import Path

import click
from ddp_operator import __version__
from ddp_operator.api.constants import RECURSION

from ddp_client.cli.app import connection_options
from ddp_client.cli.group import CommandGroup


@click.group(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="ddp-operator %(version)s")
@connection_options
def program() -> None:
    """Run, inspect and manage DDPJobs."""


def main() -> None:
    """Run one command and exit with its exit code."""
    sys.setrecursionlimit(RECURSION)
    called = Path(sys.argv[0]).name
    program(prog_name="ddp" if called == "ddp" else "kubectl ddp")


def kubectl_completion() -> None:
    """Complete a command line: kubectl runs `kubectl_complete-ddp WORD...` for its plugin."""
    from ddp_client.cli.commands.completion import complete_for_kubectl  # noqa: PLC0415

    click.echo("\n".join(complete_for_kubectl(program, sys.argv[1:])))


if __name__ == "__main__":
    main()
