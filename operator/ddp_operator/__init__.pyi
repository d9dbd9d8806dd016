# For type checkers: what __init__.py loads only when it is asked for.
from ddp_operator.sdk import AsyncClient as AsyncClient
from ddp_operator.sdk import AsyncLocalClient as AsyncLocalClient
from ddp_operator.sdk import Client as Client
from ddp_operator.sdk import LocalClient as LocalClient

__version__: str
__all__ = ["AsyncClient", "AsyncLocalClient", "Client", "LocalClient", "__version__"]
