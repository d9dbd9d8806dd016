"""The program: `kubectl ddp`, `ddp` and `python -m ddp_client.cli` are the same."""

import sys
from pathlib import Path

import click
from ddp_operator import __version__
from ddp_operator.kube.client import RECURSION

from ddp_client.cli.app import connection_options
from ddp_client.cli.commands.bundle import bundle
from ddp_client.cli.commands.changes.delete import delete
from ddp_client.cli.commands.changes.restart import restart
from ddp_client.cli.commands.changes.resume import resume
from ddp_client.cli.commands.changes.scale import scale
from ddp_client.cli.commands.changes.stop import stop
from ddp_client.cli.commands.completion import complete_for_kubectl, completion
from ddp_client.cli.commands.convert import convert
from ddp_client.cli.commands.doctor import doctor
from ddp_client.cli.commands.list import list_jobs
from ddp_client.cli.commands.mcp import mcp
from ddp_client.cli.commands.pods.exec import exec_
from ddp_client.cli.commands.pods.logs import logs
from ddp_client.cli.commands.pods.port_forward import port_forward
from ddp_client.cli.commands.pods.profile import profile
from ddp_client.cli.commands.pods.stacks import stacks
from ddp_client.cli.commands.report import report
from ddp_client.cli.commands.run import run
from ddp_client.cli.commands.status import status
from ddp_client.cli.commands.ui import ui
from ddp_client.cli.commands.wait import wait
from ddp_client.cli.commands.why import why


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="ddp-operator %(version)s")
@connection_options
def program() -> None:
    """Run, inspect and manage DDPJobs."""


for _command in (
    run,
    list_jobs,
    status,
    why,
    wait,
    logs,
    exec_,
    port_forward,
    stacks,
    profile,
    report,
    ui,
    bundle,
    stop,
    resume,
    restart,
    scale,
    delete,
    convert,
    doctor,
    mcp,
    completion,
):
    program.add_command(_command)


def main() -> None:
    """Run one command and exit with its exit code."""
    sys.setrecursionlimit(RECURSION)
    called = Path(sys.argv[0]).name
    program(prog_name="ddp" if called == "ddp" else "kubectl ddp")


def kubectl_completion() -> None:
    """Complete a command line: kubectl runs `kubectl_complete-ddp WORD...` for its plugin."""
    click.echo("\n".join(complete_for_kubectl(program, sys.argv[1:])))


if __name__ == "__main__":
    main()
