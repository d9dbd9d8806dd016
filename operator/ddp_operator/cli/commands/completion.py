"""The command `completion`, and what kubectl asks for the completion of a plugin."""

from collections.abc import Sequence

import click
from click.shell_completion import ShellComplete, get_completion_class

SHELLS = ("bash", "zsh", "fish")
_NO_FILES = ":4"
"""What kubectl is told after the words: no file fits (cobra's ShellCompDirectiveNoFileComp)."""


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what makes a shell complete commands, options, and jobs of the cluster.

    \b
        source <(ddp completion bash)          in ~/.bashrc
        source <(ddp completion zsh)           in ~/.zshrc
        ddp completion fish | source           in ~/.config/fish/config.fish

    It completes `ddp`. kubectl completes `kubectl ddp` by itself, by the program
    `kubectl_complete-ddp` that is installed beside it.
    """
    program = context.find_root().command
    kind = get_completion_class(shell)
    assert kind is not None  # click knows these three
    click.echo(kind(program, {}, "ddp", "_DDP_COMPLETE").source())


def complete_for_kubectl(program: click.Command, words: Sequence[str]) -> list[str]:
    """The words that may come next, and the directive behind them; the last one given has only
    been begun.
    """
    *before, begun = words or [""]
    found = ShellComplete(program, {}, "ddp", "_DDP_COMPLETE").get_completions(before, begun)
    return [*(f"{item.value}\t{item.help or ''}".rstrip() for item in found), _NO_FILES]
