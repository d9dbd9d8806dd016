"""How other projects' webhooks are found without a Service."""

import base64
from pathlib import Path

from tests.cluster.foreign import WebhookServer


def test_webhooks_are_called_at_a_loopback_address(tmp_path: Path) -> None:
    (tmp_path / "tls.crt").write_bytes(b"certificate")
    server = WebhookServer(tmp_path, 1234)
    service = {"name": "webhooks", "namespace": "system", "path": "/validate"}
    manifest = {
        "kind": "ValidatingWebhookConfiguration",
        "webhooks": [{"name": "one", "clientConfig": {"service": service}}],
    }
    assert server.redirected(manifest) == {
        "kind": "ValidatingWebhookConfiguration",
        "webhooks": [
            {
                "name": "one",
                "clientConfig": {
                    "url": "https://127.0.0.1:1234/validate",
                    "caBundle": base64.b64encode(b"certificate").decode(),
                },
            }
        ],
    }


def test_a_property_of_that_name_stays_as_it_is(tmp_path: Path) -> None:
    schema = {"properties": {"service": {"type": "string"}}}
    assert WebhookServer(tmp_path, 1234).redirected(schema) == schema
