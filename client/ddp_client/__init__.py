"""What people use: the command line, the Python client, reports, and runs without a cluster."""

from importlib import import_module
from typing import Any

from ddp_operator import __version__

# The other names are in __init__.pyi: a command that needs no client should not load it.
_CLIENTS = ("AsyncClient", "AsyncLocalClient", "Client", "LocalClient")
__all__ = [*_CLIENTS, "__version__"]  # noqa: PLE0604 - they are strings


def __getattr__(name: str) -> Any:
    """Load the client on first use."""
    if name not in _CLIENTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("ddp_client.sdk"), name)
