"""A small API server in this process, for behaviour that a real one does not show on demand.

It knows collections of namespaced objects, revisions, paged lists and watches. It can fail: answer
with errors, drop the connection, cut or freeze its watches, forget old revisions. It does not prove
that Kubernetes behaves the same; the integration tests do that.
"""

import asyncio
import copy
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.unit.kube.fake_channels import FakePort, FakeProgram, serve_port, serve_program

Object = dict[str, Any]


@dataclass
class Request:
    """A client's request."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass
class Fault:
    """A response instead of the real one, `times` times; None drops the connection.

    With `after_effect` the request takes effect and only its response is lost. It comes after
    `delay_seconds`.
    """

    method: str
    status: int | None
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    times: int = 1
    path_part: str = ""
    after_effect: bool = False
    delay_seconds: float = 0.0

    def matches(self, request: web.Request) -> bool:
        return (
            self.times > 0 and request.method == self.method and self.path_part in request.path_qs
        )


class FakeApiServer:
    """Objects by request path, and all their revisions as a log that watches read."""

    def __init__(self) -> None:
        self.url = ""
        self.revision = 100
        self.oldest_revision = 0
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.log: list[tuple[int, str, str, Object]] = []
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.bearer_token: str | None = None
        self.frozen = False
        # Sent once, unchanged, by the next watch that wakes up.
        self.extra_line = b""
        # Called between the pages of a list, for events during a list.
        self.before_page: Callable[[int], None] = lambda _page: None
        # Output of pods, by their names.
        self.logs: dict[str, bytes] = {}
        self.log_queries: list[dict[str, str]] = []
        # Programs that can run in pods, and listeners on their ports, by pod name.
        self.programs: dict[str, FakeProgram] = {}
        self.ports: dict[tuple[str, int], FakePort] = {}
        self.exec_protocols: tuple[str, ...] = ("v5.channel.k8s.io", "v4.channel.k8s.io")
        self.resource_lists: dict[str, list[str]] = {}
        # Responses to GET by path, for objects without a namespace.
        self.documents: dict[str, Object] = {}
        # Labels of every namespace: any requested one exists.
        self.namespace_labels: dict[str, str] = {}
        self.denied: set[tuple[str, str]] = set()
        # Names of objects that no request for a collection may delete.
        self.protected: set[str] = set()
        # Bearers of tokens, and the paths that they may get.
        self.bearers: dict[str, Object] = {}
        self.visitors: set[tuple[str, str]] = set()
        self._pages: dict[str, tuple[int, list[Object]]] = {}
        self._changed = asyncio.Condition()
        self._watches: set[asyncio.Task[None]] = set()
        self._uid = 0
        self._tasks: set[asyncio.Task[None]] = set()

    # Actions of tests.

    def create(self, plural: str, manifest: Object) -> Object:
        stored = copy.deepcopy(manifest)
        metadata = stored["metadata"]
        self._uid += 1
        metadata["uid"] = f"uid-{self._uid}"
        self.objects[plural, metadata["namespace"], metadata["name"]] = stored
        return self._record("ADDED", plural, stored)

    def update(self, plural: str, namespace: str, name: str, patch: Object) -> Object:
        stored = self.objects[plural, namespace, name]
        _merge(stored, patch)
        return self._record("MODIFIED", plural, stored)

    def delete(self, plural: str, namespace: str, name: str) -> Object:
        return self._record("DELETED", plural, self.objects.pop((plural, namespace, name)))

    def cut_watches(self) -> None:
        for task in list(self._watches):
            task.cancel()

    def compact(self) -> None:
        self.oldest_revision = self.revision

    def go_away(self) -> None:
        """Answer no request any more."""
        self.faults = [Fault("GET", 503, {"message": "away"}, times=1000)]

    def count(self, method: str, path_part: str = "", *, watch: bool = False) -> int:
        return sum(
            request.method == method
            and path_part in request.path
            and ("watch" in request.query) == watch
            for request in self.requests
        )

    @property
    def open_watches(self) -> int:
        return len(self._watches)

    def _record(self, kind: str, plural: str, stored: Object) -> Object:
        self.revision += 1
        stored["metadata"]["resourceVersion"] = str(self.revision)
        snapshot = copy.deepcopy(stored)
        self.log.append((self.revision, kind, plural, snapshot))
        self.wake()
        return copy.deepcopy(snapshot)

    def wake(self) -> None:
        async def notify() -> None:
            async with self._changed:
                self._changed.notify_all()

        task = asyncio.get_running_loop().create_task(notify())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # HTTP.

    @asynccontextmanager
    async def running(self) -> AsyncIterator["FakeApiServer"]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        address = runner.addresses[0]
        self.url = f"http://{address[0]}:{address[1]}"
        try:
            yield self
        finally:
            self.cut_watches()
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = json.loads(raw) if raw else None
        self.requests.append(
            Request(
                request.method,
                request.path,
                dict(request.query),
                dict(request.headers),
                body,
            )
        )
        if self.bearer_token is not None:
            given = request.headers.get("Authorization", "")
            if given != f"Bearer {self.bearer_token}":
                return _status(401, "Unauthorized", "Unauthorized")
        fault = next((fault for fault in self.faults if fault.matches(request)), None)
        if fault is None:
            return await self._answer(request, body)
        fault.times -= 1
        await asyncio.sleep(fault.delay_seconds)
        if fault.after_effect:
            await self._answer(request, body)
        if fault.status is None:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if isinstance(fault.body, str):
            return web.Response(status=fault.status, text=fault.body, headers=fault.headers)
        return web.json_response(fault.body, status=fault.status, headers=fault.headers)

    async def _answer(self, request: web.Request, body: Any) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")
        parts = parts[2:] if parts[0] == "api" else parts[3:]
        if not parts or request.path in self.documents or parts[:-1] == ["namespaces"]:
            return self._discovery(request)
        reviews = {
            "selfsubjectaccessreviews": self._review,
            "tokenreviews": self._token_review,
            "subjectaccessreviews": self._access_review,
        }
        if review := reviews.get(parts[0]):
            return review(body)
        namespace = None
        if parts[0] == "namespaces":
            namespace, parts = parts[1], parts[2:]
        if len(parts) == 1:
            return await self._answer_collection(request, parts[0], namespace, body)
        assert namespace is not None
        if parts[2:] == ["log"]:
            self.log_queries.append(dict(request.query))
            return self._log(parts[1])
        if parts[2:] in (["exec"], ["portforward"]):
            return await self._connect(request, parts[1], parts[2])
        return self._answer_object(request, (parts[0], namespace, parts[1]), body)

    async def _answer_collection(
        self, request: web.Request, plural: str, namespace: str | None, body: Any
    ) -> web.StreamResponse:
        if request.method == "POST":
            body = copy.deepcopy(body)  # the sent body is on record
            body["metadata"].setdefault("namespace", namespace)
            if "dryRun" in request.query:
                return web.json_response(body, status=201)
            body["metadata"].setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
            return self._post(plural, body)
        if "watch" in request.query:
            return await self._watch(request, plural, namespace)
        if request.method == "DELETE":
            return self._delete_collection(request, plural, namespace, body or {})
        return self._list(request, plural, namespace)

    def _answer_object(
        self, request: web.Request, key: tuple[str, str, str], body: Any
    ) -> web.Response:
        if key not in self.objects:
            return _status(404, "NotFound", f'{key[0]} "{key[2]}" not found')
        if request.method == "PATCH":
            return self._patch(key, body)
        if request.method == "PUT":
            return self._put(key, body)
        if request.method == "DELETE":
            return self._delete(key, body or {})
        return web.json_response(self.objects[key])

    def _log(self, pod: str) -> web.Response:
        if pod not in self.logs:
            return _status(400, "BadRequest", "the container is waiting to start")
        return web.Response(body=self.logs[pod])

    async def _connect(self, request: web.Request, pod: str, how: str) -> web.StreamResponse:
        verdict = _status(404, "NotFound", f'pods "{pod}" not found')
        if ("get", f"pods/{how}") in self.denied:
            return _status(403, "Forbidden", f"you cannot get resource pods/{how}")
        if how == "exec" and pod in self.programs:
            verdict = _status(400, "BadRequest", "Upgrade request required")
            if request.headers.get("Upgrade", "").lower() == "websocket":
                return await serve_program(request, self.programs[pod], self.exec_protocols)
        if how == "portforward":
            port = self.ports.get((pod, int(request.query["ports"])))
            return await serve_port(request, port) if port else verdict
        return verdict

    def _discovery(self, request: web.Request) -> web.Response:
        if request.path in self.documents:
            return web.json_response(self.documents[request.path])
        if "/namespaces/" in request.path:
            name = request.path.rpartition("/")[2]
            return web.json_response({"metadata": {"name": name, "labels": self.namespace_labels}})
        names = self.resource_lists.get(request.path)
        if names is None:
            return _status(404, "NotFound", "the server could not find the resource")
        return web.json_response({"resources": [{"name": name} for name in names]})

    def _review(self, body: Object) -> web.Response:
        attributes = body["spec"]["resourceAttributes"]
        allowed = (attributes["verb"], attributes["resource"]) not in self.denied
        return web.json_response({"status": {"allowed": allowed}}, status=201)

    def _token_review(self, body: Object) -> web.Response:
        user = self.bearers.get(body["spec"]["token"])
        status = {"authenticated": True, "user": user} if user else {"error": "invalid token"}
        return web.json_response({"status": status}, status=201)

    def _access_review(self, body: Object) -> web.Response:
        spec = body["spec"]
        attributes = spec["nonResourceAttributes"]
        allowed = (spec["user"], attributes["path"]) in self.visitors
        allowed = allowed and attributes["verb"] == "get"
        return web.json_response({"status": {"allowed": allowed}}, status=201)

    def _post(self, plural: str, body: Object) -> web.Response:
        metadata = body["metadata"]
        if "generateName" in metadata:
            metadata.setdefault("name", f"{metadata['generateName']}1")
        if (plural, metadata["namespace"], metadata["name"]) in self.objects:
            return _status(409, "AlreadyExists", f'{plural} "{metadata["name"]}" already exists')
        return web.json_response(self.create(plural, body), status=201)

    def _patch(self, key: tuple[str, str, str], body: Object) -> web.Response:
        wanted = body.get("metadata", {}).pop("resourceVersion", None)
        current = self.objects[key]["metadata"]["resourceVersion"]
        if wanted not in (None, current):
            return _status(409, "Conflict", "the object has been modified")
        return web.json_response(self.update(*key, body))

    def _put(self, key: tuple[str, str, str], body: Object) -> web.Response:
        stored = self.objects[key]
        wanted = body["metadata"].get("resourceVersion")
        if wanted not in (None, stored["metadata"]["resourceVersion"]):
            return _status(409, "Conflict", "the object has been modified")
        self.objects[key] = {**copy.deepcopy(body), "metadata": stored["metadata"]}
        return web.json_response(self._record("MODIFIED", key[0], self.objects[key]))

    def _delete(self, key: tuple[str, str, str], options: Object) -> web.Response:
        stored = self.objects[key]
        uid = options.get("preconditions", {}).get("uid")
        if uid not in (None, stored["metadata"]["uid"]):
            return _status(409, "Conflict", "Precondition failed: UID in precondition")
        grace = options.get("gracePeriodSeconds", 30)
        terminating = {
            "metadata": {
                "deletionTimestamp": "2026-01-01T00:00:00Z",
                "deletionGracePeriodSeconds": grace,
            }
        }
        if key[0] != "pods":
            self.delete(*key)
            return web.json_response(
                {"kind": "Status", "status": "Success", "details": {"uid": uid}}
            )
        updated = self.update(*key, terminating)
        if stored["metadata"].get("finalizers"):
            return web.json_response({**updated, "kind": "Pod"})
        if not stored.get("spec", {}).get("nodeName") or grace == 0:
            self.delete(*key)
        return web.json_response({**updated, "kind": "Pod"})

    def _delete_collection(
        self, request: web.Request, plural: str, namespace: str | None, options: Object
    ) -> web.Response:
        """Delete the selected objects one after the other, up to the first refusal. Return them as
        they were before.
        """
        selected = {
            key: copy.deepcopy(stored)
            for key, stored in self.objects.items()
            if key[0] == plural and namespace in (None, key[1]) and _selected(request, stored)
        }
        for key in selected:
            if key[2] in self.protected:
                return _status(403, "Forbidden", f"a webhook protects {key[2]}")
            self._delete(key, options)
        return web.json_response({"kind": "List", "items": list(selected.values())})

    def _list(self, request: web.Request, plural: str, namespace: str | None) -> web.Response:
        token = request.query.get("continue")
        limit = int(request.query.get("limit", "0")) or 10**9
        if token is None:
            matching = [
                copy.deepcopy(stored)
                for (kind, where, _), stored in self.objects.items()
                if kind == plural and namespace in (None, where) and _selected(request, stored)
            ]
            revision, start = self.revision, 0
            self._pages[f"{revision}"] = (revision, matching)
        else:
            start = int(token.split(":")[1])
            revision, matching = self._pages[token.split(":")[0]]
            if revision < self.oldest_revision:
                return _status(410, "Expired", "The provided continue parameter is too old")
        self.before_page(start // limit)
        metadata = {"resourceVersion": str(revision)}
        if start + limit < len(matching):
            metadata["continue"] = f"{revision}:{start + limit}"
        items = [{**item, "kind": "Pod"} for item in matching[start : start + limit]]
        return web.json_response({"kind": "List", "metadata": metadata, "items": items})

    async def _watch(
        self, request: web.Request, plural: str, namespace: str | None
    ) -> web.StreamResponse:
        position = int(request.query["resourceVersion"])
        if position < self.oldest_revision:
            return _status(410, "Expired", "too old resource version")
        response = web.StreamResponse()
        await response.prepare(request)
        task = asyncio.current_task()
        assert task is not None
        self._watches.add(task)

        async def send(kind: str, manifest: Object) -> None:
            line = json.dumps({"type": kind, "object": manifest}).encode() + b"\n"
            await response.write(line)

        try:
            async with asyncio.timeout(float(request.query["timeoutSeconds"])):
                while True:
                    for revision, kind, logged, stored in list(self.log):
                        if revision <= position or self.frozen:
                            continue
                        position = revision
                        if logged != plural or namespace not in (
                            None,
                            stored["metadata"]["namespace"],
                        ):
                            continue
                        if _selected(request, stored):
                            await send(kind, stored)
                    if self.extra_line:
                        line, self.extra_line = self.extra_line, b""
                        await response.write(line)
                    if not self.frozen and position < self.revision:
                        position = self.revision
                        bookmark = {"metadata": {"resourceVersion": str(position)}}
                        await send("BOOKMARK", bookmark)
                    async with self._changed:
                        await self._changed.wait()
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._watches.discard(task)
        return response


_REQUIREMENT = re.compile(r"([^,=() ]+)(?:=([^,]*)| in \(([^()]+)\)|)(?:,|$)")


def _selected(request: web.Request, manifest: Object) -> bool:
    """Return whether labels meet the selector: `name`, `name=value` or `name in (a,b)`."""
    labels = manifest["metadata"].get("labels", {})
    selector = request.query.get("labelSelector", "")
    assert _REQUIREMENT.sub("", selector) == "", f"a bad selector: {selector}"
    return all(
        name in labels and (not (one or several) or labels[name] in (several or one).split(","))
        for name, one, several in _REQUIREMENT.findall(selector)
    )


def _status(code: int, reason: str, message: str) -> web.Response:
    return web.json_response(
        {"kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": code},
        status=code,
    )


def _merge(target: Object, patch: Object) -> None:
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        elif isinstance(value, dict) and isinstance(target.get(name), dict):
            _merge(target[name], value)
        else:
            target[name] = copy.deepcopy(value)
