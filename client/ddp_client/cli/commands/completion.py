"""The command `completion`, and the completion of kubectl's plugin."""

from collections.abc import Sequence

import click
from click.shell_completion import ShellComplete, get_completion_class

SHELLS = ("bash", "zsh", "fish")
_NO_FILES = ":4"
"""The last line for kubectl: complete no file names (cobra's ShellCompDirectiveNoFileComp)."""


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a shell script that completes commands and jobs.

    \b
        source <(ddp completion bash)          in ~/.bashrc
        source <(ddp completion zsh)           in ~/.zshrc
        ddp completion fish | source           in ~/.config/fish/config.fish

    It completes `ddp`. kubectl itself completes `kubectl ddp`, with the program
    `kubectl_complete-ddp` that is installed with the plugin.
    """
    program = context.find_root().command
    kind = get_completion_class(shell)
    assert kind is not None  # click knows these three
    click.echo(kind(program, {}, "ddp", "_DDP_COMPLETE").source())


def complete_for_kubectl(program: click.Command, words: Sequence[str]) -> list[str]:
    """Return possible next words, then kubectl's directive; the last word given is incomplete."""
    *before, begun = words or [""]
    items = ShellComplete(program, {}, "ddp", "_DDP_COMPLETE").get_completions(before, begun)
    return [*(f"{item.value}\t{item.help or ''}".rstrip() for item in items), _NO_FILES]
