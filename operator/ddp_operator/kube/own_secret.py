"""A secret key of this program, kept in a Secret that all replicas share."""

import base64
import binascii
import logging
import secrets
from typing import Final

from ddp_operator.kube.client import ApiClient
from ddp_operator.kube.resources import SECRETS
from ddp_operator.ports import AlreadyExistsError, Key, Manifest, NotFoundError, UnavailableError

logger = logging.getLogger(__name__)

_ENTRY: Final = "key"
_BYTES: Final = 32
"""As long as the output of HMAC-SHA256 (RFC 2104)."""
_ATTEMPTS: Final = 3


async def own_secret(client: ApiClient, where: Key) -> bytes:
    """Return the secret key. Create it if there is none.

    Raises:
        ValueError: the Secret exists but has no usable key.
        ClusterError: it can be neither read nor created.
    """
    path = SECRETS.path(namespace=where.namespace, name=where.name)
    for _ in range(_ATTEMPTS):
        try:
            return _read(where, await client.request("GET", path))
        except NotFoundError:
            pass
        try:
            collection = SECRETS.path(namespace=where.namespace)
            created = await client.request("POST", collection, body=_new(where))
        except AlreadyExistsError:
            continue  # another replica was faster: its key counts
        logger.info("created the Secret %s", where)
        return _read(where, created)
    raise UnavailableError(f"the Secret {where} keeps appearing and vanishing")


def _new(where: Key) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"namespace": where.namespace, "name": where.name},
        "type": "Opaque",
        "immutable": True,
        "data": {_ENTRY: base64.b64encode(secrets.token_bytes(_BYTES)).decode()},
    }


def _read(where: Key, manifest: Manifest) -> bytes:
    try:
        found = base64.b64decode((manifest.get("data") or {}).get(_ENTRY, ""), validate=True)
    except binascii.Error:
        found = b""
    if len(found) < _BYTES:
        raise ValueError(
            f"the Secret {where} has no data.{_ENTRY} of at least {_BYTES} bytes; delete it, and "
            "the operator creates a new one at its next start"
        )
    return found
