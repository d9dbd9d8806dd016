"""The content of a bug report: objects, the last lines of logs, and versions.

All of it is bounded, and secrets are removed as far as they can be recognized.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

from ddp_operator import __version__
from ddp_operator.api.constants import LABEL_JOB_NAME
from ddp_operator.api.schema import crd
from ddp_operator.api.schema.comparison import compare
from ddp_operator.api.values.text import clean, counted
from ddp_operator.kube import CUSTOM_RESOURCE_DEFINITIONS, EVENTS, NODES, PODS, Resource, list_pages
from ddp_operator.ports import ClusterError, Key, Manifest

from ddp_client.remote.cluster import DEPLOYMENTS, OF_THE_OPERATOR, Cluster
from ddp_client.text import clean_output
from ddp_client.views.redaction import RedactionTimeoutError, Redactor

_MOST_PODS: Final = 1000
_MOST_LOGS: Final = 64
_MOST_NODES: Final = 64
_MOST_EVENTS: Final = 2000
_MOST_READ: Final = 20_000
"""Most objects of a kind that are searched for the job's."""
_LOG_LINES: Final = 2000
_LOG_BYTES: Final = 256 * 1024
_READ_BYTES: Final = 4 * 1024 * 1024
"""Most bytes of a log that are read; the last of them are kept."""
_LINE: Final = 4096
_SECONDS: Final = 15.0
_MOST_BYTES: Final = 32 * 1024 * 1024


@dataclass
class Bundle:
    """Files by name, what was removed from each, and a list of missing data."""

    files: dict[str, bytes] = field(default_factory=dict)
    removed: dict[str, Counter[str]] = field(default_factory=dict)
    """Secrets by kind, for each file."""
    left_out: list[str] = field(default_factory=list)
    size: int = 0
    redactor: Redactor = field(default_factory=Redactor)

    def add_objects(self, name: str, manifests: Manifest | list[Manifest]) -> None:
        """Add objects without secrets, as JSON, which escapes control characters."""
        self._add(name, lambda: _json(self.redactor.manifest({"items": manifests})["items"]))

    def add_nodes(self, name: str, manifests: list[Manifest]) -> None:
        """Add nodes without addresses, annotations and secrets."""
        self._add(name, lambda: _json([self.redactor.node(manifest) for manifest in manifests]))

    def add_log(self, name: str, text: str) -> None:
        """Add a log without secrets."""
        self._add(name, lambda: self.redactor.text(text))

    def _add(self, name: str, redacted: Callable[[], str]) -> None:
        """Add a file if there is room."""
        try:
            content = redacted().encode()
        except RecursionError:
            self.left_out.append(f"{name}: it is nested too deep")
            return
        except RedactionTimeoutError:
            self.left_out.append(f"{name}: the search for secrets takes too long")
            return
        finally:
            removed = self.redactor.removed()
        if self.size + len(content) > _MOST_BYTES:
            self.left_out.append(f"{name}: the bundle already has {_MOST_BYTES >> 20} MB")
            return
        self.files[name] = content
        self.size += len(content)
        if removed:
            self.removed[name] = removed


def _json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"


class Collector:
    """Collects a bundle; data that cannot be read is listed and left out."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.bundle = Bundle()

    async def collect(self, key: Key, job: Manifest) -> Bundle:
        """Read all data about a job."""
        self.bundle.add_objects("job.json", job)
        own = {"labelSelector": f"{LABEL_JOB_NAME}={key.name}"}
        pods = await self._objects("pods", PODS, key.namespace, own, _MOST_PODS)
        self.bundle.add_objects("pods.json", pods)
        uids = {each["metadata"].get("uid") for each in (job, *pods)}
        events = await self._objects(
            "events",
            EVENTS,
            key.namespace,
            {},
            _MOST_EVENTS,
            lambda event: (event.get("involvedObject") or {}).get("uid") in uids,
        )
        self.bundle.add_objects("events.json", events)
        await self._nodes(pods)
        await self._logs("logs", _failed_first(pods), most=_MOST_LOGS)
        await self._operator()
        await self._versions()
        return self.bundle

    async def _nodes(self, pods: Iterable[Manifest]) -> None:
        names = sorted({str((pod.get("spec") or {}).get("nodeName") or "") for pod in pods} - {""})
        nodes = []
        for name in names[:_MOST_NODES]:
            try:
                manifest = await self._cluster.client.request("GET", NODES.path(name=name))
            except ClusterError as error:
                self._leave_out(f"nodes ({len(names)})", error)
                break
            nodes.append(manifest)
        if len(names) > _MOST_NODES:
            self.bundle.left_out.append(f"{len(names) - _MOST_NODES} more nodes")
        self.bundle.add_nodes("nodes.json", nodes)

    async def _operator(self) -> None:
        params = OF_THE_OPERATOR
        deployments = await self._objects("the operator", DEPLOYMENTS, None, params, 8)
        self.bundle.add_objects("operator/deployments.json", deployments)
        for namespace in sorted({each["metadata"]["namespace"] for each in deployments}):
            pods = await self._objects("the operator's pods", PODS, namespace, params, 8)
            await self._logs("operator/logs", pods, most=8)

    async def _versions(self) -> None:
        client = self._cluster.client
        versions: dict[str, Any] = {"kubectl ddp": __version__}
        try:
            versions["server"] = await client.request("GET", "/version")
        except ClusterError as error:
            self._leave_out("the server's version", error)
        try:
            path = CUSTOM_RESOURCE_DEFINITIONS.path(name=crd.NAME)
            installed = await client.request("GET", path)
            difference = compare(installed)
            versions["crd"] = {
                "labels": installed["metadata"].get("labels"),
                "versions": [each["name"] for each in installed["spec"]["versions"]],
                "lacking": sorted(difference.lacking)[:100],
                "unknown": sorted(difference.unknown)[:100],
            }
        except ClusterError as error:
            self._leave_out("the CRD's version", error)
        self.bundle.add_objects("versions.json", versions)

    async def _objects(
        self,
        what: str,
        kind: Resource,
        namespace: str | None,
        params: Mapping[str, str],
        most: int,
        wanted: Callable[[Manifest], bool] = lambda _: True,
    ) -> list[Manifest]:
        objects: list[Manifest] = []
        read = 0
        try:
            pages = list_pages(self._cluster.client, kind.path(namespace=namespace), params=params)
            async for items, _ in pages:
                objects += filter(wanted, items)
                read += len(items)
                if len(objects) > most or read > _MOST_READ:
                    self.bundle.left_out.append(f"{what}: there are more than were read")
                    break
        except ClusterError as error:
            self._leave_out(what, error)
        return objects[:most]

    async def _logs(self, folder: str, pods: list[Manifest], *, most: int) -> None:
        for pod in pods[:most]:
            key = Key.of(pod)
            for container in _containers(pod):
                try:
                    text = await self._log_end(key, container)
                except ClusterError as error:
                    self._leave_out(f"the log of {key.name} {container}", error)
                    continue
                self.bundle.add_log(f"{folder}/{key.name}.{container}.log", text)
        if len(pods) > most:
            self.bundle.left_out.append(f"the logs of {counted(len(pods) - most, 'more pod')}")

    async def _log_end(self, pod: Key, container: str) -> str:
        options = {"tailLines": str(_LOG_LINES), "limitBytes": str(_READ_BYTES)}
        end = b""
        async with aclosing(
            self._cluster.log(pod, container, options, idle_seconds=_SECONDS)
        ) as pieces:
            async for piece in pieces:
                end = (end + piece)[-_LOG_BYTES:]
        lines = end.decode(errors="replace").split("\n")
        # A line that was cut may have a secret without the name that reveals it.
        lines = lines[1:] if len(end) == _LOG_BYTES else lines
        return "\n".join(clean_output(line, _LINE) for line in lines)

    def _leave_out(self, what: str, error: ClusterError) -> None:
        self.bundle.left_out.append(f"{what}: {clean(error.message, 200)}")


def _failed_first(pods: list[Manifest]) -> list[Manifest]:
    return sorted(pods, key=lambda pod: (pod.get("status") or {}).get("phase") != "Failed")


def _containers(pod: Manifest) -> list[str]:
    """Return the containers with a log: those that have started, init containers included."""
    status = pod.get("status") or {}
    statuses = [
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ]
    return [each["name"] for each in statuses if "waiting" not in (each.get("state") or {})][:8]
