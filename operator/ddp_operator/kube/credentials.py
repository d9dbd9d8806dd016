"""Address of the API server and the credentials for it.

The `kubernetes` package knows every form of kubeconfig (contexts, exec and GKE plugins, client
certificates) and the in-cluster service account. Only its configuration is used: its client needs
ten times the CPU for each request. Tokens rotate, so the Authorization header is read again for
use, and after a refusal everything is loaded again.
"""

import asyncio
import os
import ssl
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from kubernetes.client import Configuration
from kubernetes.config.config_exception import ConfigException
from kubernetes.config.incluster_config import InClusterConfigLoader
from kubernetes.config.kube_config import list_kube_config_contexts, load_kube_config

_ResultT = TypeVar("_ResultT")

# Where the kubelet mounts a pod's service account (Kubernetes documentation, "Accessing the
# Kubernetes API from a Pod").
SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")

# The kubelet renews a bound token when 80 % of its life (at least ten minutes) has passed. Reading
# it twice a minute never uses an expired one.
_HEADER_TTL_SECONDS = 30.0
# A server that refuses every token must not make us run an exec plugin for each response.
_RELOAD_INTERVAL_SECONDS = 5.0


class CredentialsError(Exception):
    """There is no usable cluster configuration. The message is one line with the remedy."""


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach the API server, in the terms of `kopf.ConnectionInfo`."""

    server: str
    ca_path: str | None
    insecure: bool
    scheme: str | None
    token: str | None
    certificate_path: str | None
    private_key_path: str | None
    default_namespace: str
    proxy_url: str | None


@dataclass(frozen=True, slots=True)
class _Source:
    """One source of configuration. `in_pod`: the pod of this process. Its token changes without
    notice.
    """

    load: Callable[[], tuple[Any, str]]
    in_pod: bool


class Credentials:
    """The server's address, its TLS context and the current Authorization header."""

    def __init__(self, source: _Source, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._lock = asyncio.Lock()
        self._header: str | None = None
        self._header_expires = 0.0
        self._loaded_at = 0.0
        self._load()

    @property
    def pod_namespace(self) -> str | None:
        """Namespace of the pod of this process, or None with a kubeconfig."""
        return self.default_namespace if self._source.in_pod else None

    def _load(self) -> None:
        self._configuration, self.default_namespace = self._source.load()
        self.server: str = self._configuration.host.rstrip("/")
        self.ssl_context = _ssl_context(self._configuration)
        self.tls_server_name: str | None = self._configuration.tls_server_name
        self.proxy_url = _proxy_url(self._configuration)
        self._keep_header(self._configuration.get_api_key_with_prefix("BearerToken"))
        self._loaded_at = self._clock()

    def _keep_header(self, header: str | None) -> None:
        self._header = header.strip() if header else None
        self._header_expires = self._clock() + _HEADER_TTL_SECONDS

    def _read_header(self) -> str | None:
        if self._source.in_pod:
            self._configuration, self.default_namespace = self._source.load()
        header: str | None = self._configuration.get_api_key_with_prefix("BearerToken")
        return header

    async def authorization(self) -> str | None:
        """Return the Authorization header to send now, or None with client certificates.

        Raises `CredentialsError` if the token can no longer be read.
        """
        if self._clock() >= self._header_expires:
            async with self._lock:
                if self._clock() >= self._header_expires:
                    # An exec plugin may take seconds, so it must not run on the event loop.
                    self._keep_header(await asyncio.to_thread(_explained, self._read_header))
        return self._header

    async def refresh(self, *, refused: str | None) -> None:
        """Load everything again after the server refused the header `refused` (401)."""
        async with self._lock:
            if self._header != refused:
                return  # another request has refreshed meanwhile
            if self._clock() - self._loaded_at < _RELOAD_INTERVAL_SECONDS:
                return
            await asyncio.to_thread(_explained, self._load)

    async def connection(self) -> Connection:
        """Return the connection as data, for a client with its own HTTP session."""
        header = await self.authorization()
        scheme, _, token = header.partition(" ") if header else ("", "", "")
        return Connection(
            server=self.server,
            ca_path=self._configuration.ssl_ca_cert or None,
            insecure=not self._configuration.verify_ssl,
            scheme=scheme or None,
            token=token or None,
            certificate_path=self._configuration.cert_file or None,
            private_key_path=self._configuration.key_file or None,
            default_namespace=self.default_namespace,
            proxy_url=self.proxy_url,
        )


def load_credentials(
    *,
    kubeconfig: str | None = None,
    context: str | None = None,
    environ: Mapping[str, str] = os.environ,
    service_account_dir: Path = SERVICE_ACCOUNT_DIR,
    clock: Callable[[], float] = time.monotonic,
) -> Credentials:
    """Find the cluster: `kubeconfig`, else $KUBECONFIG, else ~/.kube/config, else in-cluster.

    This is kubectl's order. `context` chooses a context of the kubeconfig; the default is its
    current one. Raises `CredentialsError` if nothing is found, or nothing usable.
    """
    files = kubeconfig or environ.get("KUBECONFIG")
    default_file = Path(environ.get("HOME", "~")).expanduser() / ".kube" / "config"
    if not files and (context or default_file.is_file()):
        files = str(default_file)
    if files:
        source = _kubeconfig_source(files, context=context)
    elif environ.get("KUBERNETES_SERVICE_HOST"):
        source = _in_cluster_source(environ, service_account_dir)
    else:
        raise CredentialsError(
            f"no cluster configuration found: set KUBECONFIG or create {default_file}, "
            "or run in a pod with a service account (KUBERNETES_SERVICE_HOST is not set)"
        )
    return _explained(lambda: Credentials(source, clock=clock))


def _kubeconfig_source(files: str, *, context: str | None) -> _Source:
    existing = [p for p in files.split(os.pathsep) if p and Path(p).expanduser().is_file()]
    if not existing:
        raise CredentialsError(f"no kubeconfig at {files}: set KUBECONFIG to an existing file")

    def load() -> tuple[Any, str]:
        configuration = Configuration()
        load_kube_config(config_file=files, context=context, client_configuration=configuration)
        contexts, current = list_kube_config_contexts(config_file=files)
        name = context or current["name"]
        chosen = next(c["context"] for c in contexts if c["name"] == name)
        return configuration, chosen.get("namespace") or "default"

    return _Source(load=load, in_pod=False)


def _in_cluster_source(environ: Mapping[str, str], directory: Path) -> _Source:
    def load() -> tuple[Any, str]:
        configuration = Configuration()
        InClusterConfigLoader(
            token_filename=str(directory / "token"),
            cert_filename=str(directory / "ca.crt"),
            try_refresh_token=False,  # everything is loaded again, and more often
            environ=environ,
        ).load_and_set(configuration)
        namespace = directory / "namespace"
        return configuration, namespace.read_text().strip() if namespace.is_file() else "default"

    return _Source(load=load, in_pod=True)


def _explained(action: Callable[[], _ResultT]) -> _ResultT:
    """Run an action on configuration files. Turn any failure into one line."""
    try:
        return action()
    except CredentialsError:
        raise
    # Malformed YAML, unreadable files, missing plugins, certificates that do not parse: the package
    # raises each as it is.
    except Exception as error:
        kind = "" if isinstance(error, ConfigException) else f"{type(error).__name__}: "
        line = " ".join(str(error).split())
        raise CredentialsError(f"cannot use the cluster configuration: {kind}{line}") from error


def _ssl_context(configuration: Any) -> ssl.SSLContext | None:
    if not configuration.host.startswith("https"):
        return None
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert or None)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file or None)
    return context


def _proxy_url(configuration: Any) -> str | None:
    host = urllib.parse.urlsplit(configuration.host).hostname or ""
    if not configuration.proxy or urllib.request.proxy_bypass(host):
        return None
    return str(configuration.proxy)
