"""Controllers of other projects as plain processes beside a test cluster's API server.

Their manifests expect each controller in a pod behind a Service. Here the API server calls their
webhooks at a loopback address, with a certificate of our own.
"""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.client import ApiClient
from tests.cluster.errors import ClusterError
from tests.cluster.preparation import binaries

Manifest = dict[str, Any]


def manifests(folder: Path) -> list[Manifest]:
    """Return the objects of a folder with a ``kustomization.yaml``, as users would apply them.

    Raises ClusterError when kubectl cannot build them, ClusterUnavailableError when there is none.
    """
    command = [binaries.kubectl(), "kustomize", str(folder)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode:
        raise ClusterError(f"kubectl kustomize {folder}: {built.stderr.strip()}")
    return documents(built.stdout)


def documents(text: str) -> list[Manifest]:
    """Return the objects of a YAML text."""
    # The loader in C: CRDs are long, and the one in Python takes seconds.
    return list(yaml.load_all(text, Loader=yaml.CSafeLoader))


@dataclass(frozen=True)
class WebhookServer:
    """Where a controller serves its webhooks on this machine."""

    certificates: Path
    """A folder with ``tls.crt`` and ``tls.key``."""
    port: int

    def certify(self) -> None:
        """Make the folder, with a self-signed certificate."""
        self.certificates.mkdir(parents=True)
        options = ("-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=webhooks")
        key, certificate = self.certificates / "tls.key", self.certificates / "tls.crt"
        files = ("-keyout", key, "-out", certificate, "-addext", "subjectAltName=IP:127.0.0.1")
        made = subprocess.run(
            ["openssl", "req", *options, *files], capture_output=True, text=True, check=False
        )
        if made.returncode:
            raise ClusterError(f"openssl: {made.stderr.strip()}")

    def redirected(self, manifest: Any) -> Any:
        """Return a manifest, or a part of one, in which all webhooks are called here."""
        if isinstance(manifest, list):
            return [self.redirected(item) for item in manifest]
        if not isinstance(manifest, dict):
            return manifest
        service = manifest.get("service")
        if not isinstance(service, dict) or "path" not in service:
            return {key: self.redirected(value) for key, value in manifest.items()}
        certificate = (self.certificates / "tls.crt").read_bytes()
        return {
            "url": f"https://127.0.0.1:{self.port}{service['path']}",
            "caBundle": base64.b64encode(certificate).decode(),
        }


def create(client: ApiClient, manifest: Mapping[str, Any]) -> None:
    """Create one object; raises OSError (HTTPError included) when the server refuses it."""
    client.request("POST", _collection(manifest), manifest, timeout_s=60)


def location(manifest: Mapping[str, Any]) -> str:
    """Return the path of one object in the API server."""
    return f"{_collection(manifest)}/{manifest['metadata']['name']}"


def _collection(manifest: Mapping[str, Any]) -> str:
    version = manifest["apiVersion"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    namespace = manifest["metadata"].get("namespace")
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{scope}/{manifest['kind'].lower()}s"
