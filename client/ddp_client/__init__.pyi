# For type checkers: what __init__.py loads only when it is asked for.
from ddp_client.sdk import AsyncClient as AsyncClient
from ddp_client.sdk import AsyncLocalClient as AsyncLocalClient
from ddp_client.sdk import Client as Client
from ddp_client.sdk import LocalClient as LocalClient

__version__: str
__all__ = ["AsyncClient", "AsyncLocalClient", "Client", "LocalClient", "__version__"]
