"""Kueue as a plain process beside a test cluster's API server.

Its manifests expect it in a pod behind a Service. Here the API server calls it by loopback
addresses instead, with a certificate of our own. It runs in a root folder of its own, because it
reads some certificates from fixed places below `/`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from tests.cluster.client import ApiClient, wait_until
from tests.cluster.components import START_DEADLINE_S, last_words
from tests.cluster.errors import ClusterError
from tests.cluster.foreign import WebhookServer, create, documents, location
from tests.cluster.preparation import kueue as preparation
from tests.cluster.processes import ProcessId, stop
from tests.ports import free_port

_NAMESPACE = "kueue-system"
_VERSION = "v1beta2"
_QUEUES_API = f"/apis/kueue.x-k8s.io/{_VERSION}"
_VISIBILITY_API = f"/apis/visibility.kueue.x-k8s.io/{_VERSION}"
_CERTIFICATES = "/certs"
_FIXED_PLACES = ("etc/kueue/metrics/certs", "visibility")
"""Where Kueue looks for the certificates of its metrics and of its visibility server."""

_VISITOR = "kueue-visibility-visitor"
_RBAC_GROUP = "rbac.authorization.k8s.io"
_RBAC = {"apiVersion": f"{_RBAC_GROUP}/v1", "metadata": {"name": _VISITOR}}
_OPEN_VISIBILITY: Sequence[Mapping[str, Any]] = (
    {
        **_RBAC,
        "kind": "ClusterRole",
        "rules": [
            {"apiGroups": ["visibility.kueue.x-k8s.io"], "resources": ["*"], "verbs": ["get"]},
            {"nonResourceURLs": ["*"], "verbs": ["get"]},
        ],
    },
    {
        **_RBAC,
        "kind": "ClusterRoleBinding",
        "roleRef": {"apiGroup": _RBAC_GROUP, "kind": "ClusterRole", "name": _VISITOR},
        "subjects": [{"apiGroup": _RBAC_GROUP, "kind": "User", "name": "system:anonymous"}],
    },
)
"""The visibility server sees a nameless visitor in the API server, which has no client certificate
for it. Who may ask the API server stays its own decision.
"""


class Host(Protocol):
    """A cluster that Kueue can run beside."""

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of a user who may do everything."""

    @property
    def logs(self) -> Path:
        """The folder of the components' log files."""

    @property
    def client(self) -> ApiClient:
        """A minimal client with all rights."""

    def spawn_beside(self, name: str, argv: Sequence[str | Path]) -> ProcessId:
        """Start a program where the API server's loopback addresses are."""


class Kueue:
    """A Kueue with its CRDs and webhooks; it goes away with its cluster, or by `uninstall`."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._root = host.logs.parent / "kueue"
        self._webhooks = WebhookServer(self._root / _CERTIFICATES.strip("/"), free_port())
        self._visibility_port = free_port()
        self._process: ProcessId | None = None
        self._created: list[str] = []

    def install(self) -> None:
        """Install its CRDs, start it and have the API server ask it.

        Raises ClusterUnavailableError when this machine has not got it.
        """
        program, manifests = preparation.find(), preparation.manifests()
        self._write_root(program)
        self._create_crds(manifests / "crd")
        self._spawn()
        for manifest in documents((manifests / "webhook/manifests.yaml").read_text()):
            self._create(self._webhooks.redirected(manifest))
        self._open_visibility(manifests / "visibility")
        self._wait()

    def uninstall(self) -> None:
        """Remove all that `install` made, and all queues; no pod may be in one any more.

        A webhook or an API that nobody serves would hinder all who use the cluster after that.
        """
        for path in reversed(self._created):
            self._host.client.request("DELETE", path)
        # It releases its queues, without which their CRDs stay.
        wait_until(self._is_gone, what="the end of Kueue's CRDs", deadline_s=START_DEADLINE_S)
        self.stop()
        shutil.rmtree(self._root)
        self._created = []

    def start(self, **settings: Any) -> None:
        """Start it again and wait until it answers; `settings` are further fields of its
        configuration.
        """
        self._write_config(settings)
        self._spawn()
        self._wait()

    @contextmanager
    def configured(self, **settings: Any) -> Iterator[None]:
        """Run it with further fields of its configuration, and afterwards as before."""
        self.stop()
        try:
            self.start(**settings)
            yield
        finally:
            self.stop()
            self.start()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Be without it for a while."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    def stop(self) -> None:
        """Kill it without warning."""
        if self._process and (left := stop([self._process])):
            raise ClusterError(f"Kueue survived SIGKILL: {left}")

    def _create(self, manifest: Mapping[str, Any]) -> None:
        create(self._host.client, manifest)
        self._created.append(location(manifest))

    def _is_gone(self) -> bool:
        definitions = [each for each in self._created if "/customresourcedefinitions/" in each]
        return not any(self._answer("GET", each) for each in definitions)

    def _spawn(self) -> None:
        self._process = self._host.spawn_beside(
            "kueue",
            [
                # Only a user namespace lets an ordinary user choose a root folder.
                *("unshare", "--map-root-user", "--root", self._root),
                *("/kueue", "--config=/config.json", "--kubeconfig=/kubeconfig"),
            ],
        )

    def _write_root(self, program: Path) -> None:
        self._webhooks.certify()
        for place in _FIXED_PLACES:
            link = self._root / place
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(_CERTIFICATES)
        (self._root / "tmp").mkdir()
        shutil.copy2(program, self._root / "kueue")
        shutil.copy2(self._host.kubeconfig, self._root / "kubeconfig")
        self._write_config({})

    def _write_config(self, settings: Mapping[str, Any]) -> None:
        config = {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "namespace": _NAMESPACE,
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "health": {"healthProbeBindAddress": "0"},
            "metrics": {"bindAddress": "0"},
            "webhook": {
                "host": "127.0.0.1",
                "port": self._webhooks.port,
                "certDir": _CERTIFICATES,
            },
            "visibilityServer": {"bindAddress": "127.0.0.1", "bindPort": self._visibility_port},
            "integrations": {"frameworks": ["pod"]},
            **settings,
        }
        (self._root / "config.json").write_text(json.dumps(config, indent=1))

    def _create_crds(self, folder: Path) -> None:
        conversions = {
            patch["metadata"]["name"]: patch["spec"]["conversion"]
            for path in folder.glob("patches/webhook_in_*.yaml")
            for patch in documents(path.read_text())
        }
        kinds = set()
        for path in folder.glob("bases/*.yaml"):
            [definition] = documents(path.read_text())
            if conversion := conversions.get(definition["metadata"]["name"]):
                definition["spec"]["conversion"] = self._webhooks.redirected(conversion)
            self._create(definition)
            if any(version["name"] == _VERSION for version in definition["spec"]["versions"]):
                kinds.add(definition["spec"]["names"]["plural"])

        def served() -> bool:
            known = self._answer("GET", _QUEUES_API).get("resources", ())
            return kinds <= {kind["name"] for kind in known}

        wait_until(served, what="Kueue's CRDs", deadline_s=START_DEADLINE_S)

    def _open_visibility(self, folder: Path) -> None:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _NAMESPACE}}
        for manifest in (*_OPEN_VISIBILITY, namespace):
            self._create(manifest)
        [service] = documents((folder / "service.yaml").read_text())
        # The only kind of Service that may lead to a loopback address.
        service["spec"] = {"type": "ExternalName", "externalName": "127.0.0.1"}
        self._create(service)
        for path in sorted(folder.glob("apiservice_*.yaml")):
            [api] = documents(path.read_text())
            api["spec"]["service"]["port"] = self._visibility_port
            self._create(api)

    def _wait(self) -> None:
        wait_until(self._works, what="Kueue", deadline_s=START_DEADLINE_S, failed=self._death)

    def _works(self) -> bool:
        """Tell whether the API server reaches its webhooks and its visibility server."""
        flavor = {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "ResourceFlavor",
            "metadata": {"generateName": "trial-"},
        }
        asked = self._answer("POST", f"{_QUEUES_API}/resourceflavors?dryRun=All", flavor)
        return bool(asked and self._answer("GET", _VISIBILITY_API))

    def _answer(self, method: str, path: str, body: object | None = None) -> Any:
        """Return the API server's answer, or an empty one where it refuses."""
        try:
            return json.loads(self._host.client.request(method, path, body))
        except OSError:
            return {}

    def _death(self) -> str | None:
        if self._process and self._process.alive():
            return None
        return f"ended: {last_words(self._host.logs / 'kueue.log')}"
