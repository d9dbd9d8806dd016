"""A certificate in a folder, renewed in place, like a mounted Secret of type kubernetes.io/tls."""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from ddp_operator.endpoints.listening import ListenError

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 60.0
"""The kubelet, too, updates a changed Secret within about a minute."""


@asynccontextmanager
async def certificate(folder: Path | None) -> AsyncIterator[ssl.SSLContext | None]:
    """Yield the TLS context with the current `tls.crt` and `tls.key`, or None without a folder.

    Raises:
        ListenError: there is no usable certificate.
    """
    if folder is None:
        yield None
        return
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        _load(context, folder)
    except OSError as error:  # an SSLError is one, too
        raise ListenError(
            f"no usable certificate in {folder} (--metrics-cert-dir): tls.crt and tls.key: {error}"
        ) from error
    renewal = asyncio.create_task(_renew(context, folder))
    try:
        yield context
    finally:
        renewal.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await renewal


async def _renew(context: ssl.SSLContext, folder: Path) -> None:
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        try:
            _load(context, folder)  # applies to connections from now on
        except OSError as error:
            logger.warning("keeping the old certificate of the metrics endpoint: %s", error)


def _load(context: ssl.SSLContext, folder: Path) -> None:
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
