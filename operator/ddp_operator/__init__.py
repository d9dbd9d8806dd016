"""Kubernetes operator for PyTorch DistributedDataParallel jobs, and its Python client."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
# The other names are in __init__.pyi: importing them here would make the operator load the client.
_CLIENTS = ("AsyncClient", "AsyncLocalClient", "Client", "LocalClient")
__all__ = [*_CLIENTS, "__version__"]  # noqa: PLE0604 - they are strings


def __getattr__(name: str) -> Any:
    """Load the client on first use."""
    if name not in _CLIENTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("ddp_client.sdk"), name)
