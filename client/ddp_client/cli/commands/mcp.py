"""The command `mcp`: an assistant reads jobs over the Model Context Protocol."""

from typing import Final

import click

from ddp_client.cli.app import Settings, connection_options

MISSING: Final = (
    "the MCP server needs a package that is not installed: pip install 'ddp-client[mcp]'"
)


@click.command()
@connection_options
def mcp() -> None:
    """Let an assistant read jobs, over the Model Context Protocol.

    It speaks on stdin and stdout: an assistant starts it. It changes nothing, and sees what you
    may see with these options.
    """
    try:
        from ddp_client.cli.mcp_server import server  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("mcp"):
            raise
        raise click.ClickException(MISSING) from None
    settings = click.get_current_context().ensure_object(Settings)
    server(settings.options()).run()
