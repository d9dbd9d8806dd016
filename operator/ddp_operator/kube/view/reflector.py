"""Keeps a cache of one resource in step with the API server, through all failures.

kopf's own indexes start in quadratic time and keep deleted objects after a relist, but the operator
must know exactly which pods exist. So this lists, watches, and lists again when the watch cannot
continue. Objects that vanished in between are reported like any other change.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Generic, NoReturn, TypeVar

import orjson

from ddp_operator.kube.client import ApiClient
from ddp_operator.kube.errors import GoneError, error_from_status
from ddp_operator.kube.repeated_log import RepeatedLog
from ddp_operator.kube.view.cache import Entry, ObjectCache
from ddp_operator.kube.view.listing import PAGE_SIZE, list_pages
from ddp_operator.ports import ClusterError, Key, MalformedError, Manifest, UnavailableError

logger = logging.getLogger(__name__)

T = TypeVar("T")

# How long the server should keep a watch. Short enough that a dead stream is replaced soon, long
# enough that reconnecting costs nothing.
_WATCH_SECONDS: Final = 240
# How much longer the server may take before the client ends the stream itself.
_WATCH_SLACK_SECONDS: Final = 15.0
# A watch that lived this long, or delivered anything, ends a series of failures.
_HEALTHY_SECONDS: Final = 5.0


class Reflector(Generic[T]):
    """A live cache of the objects at `path` that match `label_selector`.

    `project` and `group` are those of `ObjectCache`. `on_change` is called for each group that a
    change touched, in the event loop and without waiting. The change may come from the watch, from
    a list or from our own writes; the same change is never reported twice.

    Run `run()` as a task, then `wait_synced()`; before that, `group_members` is incomplete.
    """

    def __init__(
        self,
        client: ApiClient,
        path: str,
        *,
        label_selector: str,
        project: Callable[[Manifest], T],
        group: Callable[[Manifest], Key | None],
        on_change: Callable[[Key], None],
        page_size: int = PAGE_SIZE,
        watch_seconds: int = _WATCH_SECONDS,
        watch_slack_seconds: float = _WATCH_SLACK_SECONDS,
        first_backoff_seconds: float = 0.2,
        last_backoff_seconds: float = 30.0,
    ) -> None:
        self._client = client
        self._path = path
        self._params = {"labelSelector": label_selector} if label_selector else {}
        self._cache: ObjectCache[T] = ObjectCache(project=project, group=group)
        self._on_change = on_change
        self._page_size = page_size
        self._watch_seconds = watch_seconds
        self._watch_slack_seconds = watch_slack_seconds
        self._first_backoff_seconds = first_backoff_seconds
        self._last_backoff_seconds = last_backoff_seconds
        # Number of requested lists (the first by running), and of those completed.
        self._asked = 1
        self._listed = 0
        self._list_made = asyncio.Condition()
        # The wait that `refresh` may interrupt.
        self._pause: asyncio.Timeout | None = None
        self._trouble = "no answer yet"
        self._log = RepeatedLog(logger)

    def __len__(self) -> int:
        return len(self._cache)

    @property
    def synced(self) -> bool:
        """True once the first complete list is stored."""
        return self._listed > 0

    async def wait_synced(self, *, timeout_seconds: float) -> None:
        """Wait for the first complete list. `UnavailableError` says why it did not come in time."""
        await self._until_listed(1, timeout_seconds)

    async def refresh(self, *, timeout_seconds: float) -> None:
        """List again. Afterwards the cache is no older than this call, however late the watch is.

        Raises `UnavailableError` if that did not succeed in time.
        """
        self._asked += 1
        if self._pause is not None and not self._pause.expired():
            self._pause.reschedule(asyncio.get_running_loop().time())
        await self._until_listed(self._asked, timeout_seconds)

    async def _until_listed(self, wanted: int, timeout_seconds: float) -> None:
        try:
            async with asyncio.timeout(timeout_seconds), self._list_made:
                await self._list_made.wait_for(lambda: self._listed >= wanted)
        except TimeoutError:
            raise UnavailableError(
                f"cannot list {self._path} within {timeout_seconds:g} s: {self._trouble}"
            ) from None

    def group_members(self, group: Key) -> list[T]:
        """Return the projections of the objects of one group."""
        return self._cache.members(group)

    def groups(self) -> list[Key]:
        """Return the groups that have objects."""
        return self._cache.groups()

    def uid_of(self, key: Key) -> str | None:
        """Return the UID of an object, if known."""
        entry = self._cache.get(key)
        return entry.uid if entry else None

    def offer(self, manifest: Manifest) -> None:
        """Show the server's response to a write at once, unless the watch has newer news."""
        try:
            self._notify(self._cache.offer(manifest))
        except Exception as error:
            _ignore(manifest, error)

    def forget(self, key: Key, *, uid: str) -> None:
        """Show at once that an object is gone, as the response to a write proved."""
        self._notify(self._cache.forget(key, uid=uid))

    async def run(self) -> NoReturn:
        """List and watch until cancelled. Nothing that a server does ends this."""
        must_list = True
        backoff = self._first_backoff_seconds
        while True:
            started = time.monotonic()
            version = self._cache.version
            try:
                while must_list or self._listed < self._asked:
                    await self._list_as_asked()
                    must_list = False
                if await self._interrupted(self._watch()):
                    continue
                reason = "the server ended the watch"
            except GoneError as error:
                reason = f"too far behind, listing again: {error.message}"
                must_list = True
            except ClusterError as error:
                reason = error.message
                # A broken stream can continue where it was; a stream that the server refused
                # cannot.
                must_list = must_list or error.status is not None
            except Exception as error:  # a bug or a strange response must not end this
                logger.exception("the watch on %s failed unexpectedly", self._path)
                reason = f"{type(error).__name__}: {error}"
                must_list = True
            self._trouble = reason
            healthy = time.monotonic() - started >= _HEALTHY_SECONDS
            if not must_list and (healthy or self._cache.version > version):
                backoff = self._first_backoff_seconds
            wait = backoff * random.uniform(0.5, 1.5)
            self._log.add(logging.INFO, f"the watch on {self._path} reconnects: {reason}")
            await self._interrupted(asyncio.sleep(wait))
            backoff = min(2 * backoff, self._last_backoff_seconds)

    async def _interrupted(self, work: Awaitable[None]) -> bool:
        """Wait for `work`, unless `refresh` ends it. Return whether it did."""
        try:
            async with asyncio.timeout(None) as self._pause:
                await work
        except TimeoutError:
            return True
        finally:
            self._pause = None
        return False

    async def _list_as_asked(self) -> None:
        asked = self._asked  # before the list begins: it completes no later request
        await self._list()
        async with self._list_made:
            self._listed = asked
            self._list_made.notify_all()

    async def _list(self) -> None:
        entries: list[Entry[T]] = []
        malformed: list[Key] = []
        version = 0
        pages = list_pages(self._client, self._path, params=self._params, page_size=self._page_size)
        async for items, list_version in pages:
            version = int(list_version)
            for item in items:
                try:
                    entries.append(self._cache.entry_of(item))
                except Exception as error:
                    _ignore(item, error)
                    malformed.append(_name_of(item))
            items.clear()
        self._notify(self._cache.replace(entries, version=version, malformed=malformed))
        if not self.synced:
            logger.info("synced %d objects of %s", len(self._cache), self._path)

    async def _watch(self) -> None:
        params = {
            **self._params,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(self._cache.version),
            "timeoutSeconds": str(self._watch_seconds),
        }
        lines = self._client.stream_lines(
            self._path,
            params=params,
            idle_timeout_seconds=self._watch_seconds + self._watch_slack_seconds,
        )
        async with contextlib.aclosing(lines):
            async for line in lines:
                event = orjson.loads(line)
                self._apply(event["type"], event["object"])

    def _apply(self, kind: str, manifest: Mapping[str, Any]) -> None:
        if kind == "ERROR":
            raise error_from_status(int(manifest.get("code") or 500), manifest)
        try:
            if kind in {"ADDED", "MODIFIED"}:
                self._notify(self._cache.changed(manifest))
            elif kind == "DELETED":
                self._notify(self._cache.deleted(manifest))
            elif kind == "BOOKMARK":
                self._cache.bookmark(manifest)
        except Exception as error:
            _ignore(manifest, error)

    def _notify(self, groups: Iterable[Key]) -> None:
        for group in groups:
            try:
                self._on_change(group)
            except Exception:
                logger.exception("the listener failed on a change of %s", group)


def _ignore(manifest: Mapping[str, Any], error: Exception) -> None:
    if isinstance(error, MalformedError):  # anybody may have created it
        logger.warning("ignoring %s: %s", _name_of(manifest), error)
    else:
        logger.error("%s cannot be parsed and is ignored", _name_of(manifest), exc_info=error)


def _name_of(manifest: Mapping[str, Any]) -> Key:
    metadata = manifest.get("metadata")
    if not isinstance(metadata, Mapping):
        return Key("", "?")
    return Key(str(metadata.get("namespace", "")), str(metadata.get("name", "?")))
