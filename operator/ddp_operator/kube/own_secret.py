"""The secret keys of this program, kept in a Secret that all replicas share."""

import base64
import binascii
import logging
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from ddp_operator.api.values.limits import linear
from ddp_operator.kube.client import ApiClient
from ddp_operator.kube.resources import SECRETS
from ddp_operator.ports import AlreadyExistsError, Key, Manifest, NotFoundError, UnavailableError

logger = logging.getLogger(__name__)

_BYTES: Final = 32
"""As long as the output of HMAC-SHA256 (RFC 2104)."""
_ATTEMPTS: Final = 3
_LABEL_VALUE: Final = linear(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


async def own_secret(client: ApiClient, where: Key) -> Mapping[str, bytes]:
    """Return the secret keys by name. Create the first one if there is no Secret.

    Names of keys are times such as 20261129T073000Z, so the last name is that of the newest key.

    Raises:
        ValueError: the Secret exists but has no key, or an unusable one.
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
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"namespace": where.namespace, "name": where.name},
        "type": "Opaque",
        "data": {name: base64.b64encode(secrets.token_bytes(_BYTES)).decode()},
    }


def _read(where: Key, manifest: Manifest) -> Mapping[str, bytes]:
    data: Mapping[str, str] = manifest.get("data") or {}
    if not data:
        raise ValueError(
            f"the Secret {where} has no key in data; delete it, and the operator creates a new one "
            "at its next start"
        )
    return {name: _key(where, name, text) for name, text in data.items()}


def _key(where: Key, name: str, text: str) -> bytes:
    try:
        key = base64.b64decode(text, validate=True)
    except binascii.Error:
        key = b""
    # Pods have the name as a label.
    if len(key) < _BYTES or not _LABEL_VALUE.fullmatch(name):
        raise ValueError(
            f"the Secret {where}: data.{name} is no key: it needs at least {_BYTES} bytes, and a "
            "name of at most 63 letters, digits, '-', '_' and '.'; remove it"
        )
    return key
