"""Remove secrets from the objects and logs of a bug report.

Environment variables lose all their values. Elsewhere a value is removed because of its name
(`DB_PASS=…`, `--wandb-key …`), its place (a header, a URL, after `login`) or its form: the tokens
that start with a known prefix, and those that detect-secrets knows. This removes too much rather
than too little, but a secret without any of these signs stays.

The text comes from pods: all expressions are RE2's, lines are cut, and the time is limited.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import re2

from ddp_client.views.redaction.lines import REMOVED, hides, looks_random, without_secrets
from ddp_client.views.redaction.names import is_secret

__all__ = ["REMOVED", "RedactionTimeoutError", "Redactor"]

_SECONDS: Final = 60.0
_REFERENCES: Final = frozenset({"secretName", "secretKeyRef", "serviceAccountName", "secretRef"})
"""Fields that name a secret but do not contain it."""
_PRIVATE_KEY: Final = re2.compile(
    r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\z)|"
    r"(?:[A-Za-z0-9+/=]{16,}\s{1,4})*[A-Za-z0-9+/=]*\s{0,4}-----END [A-Z ]*PRIVATE KEY-----"
)
"""The end alone is in the first lines of a log that was cut."""

_DROPPED_ANNOTATIONS: Final = ("last-applied-configuration", "last-applied")
_LONGEST_ANNOTATION: Final = 1024
_NODE: Final = {
    "metadata": ("name", "labels", "creationTimestamp"),
    "spec": ("taints", "unschedulable"),
    "status": ("conditions", "nodeInfo", "allocatable", "capacity"),
}


class RedactionTimeoutError(Exception):
    """The text takes too long; the rest of it must be left out."""


class Redactor:
    """Removes secrets, and counts them by kind."""

    def __init__(self, seconds: float = _SECONDS) -> None:
        self._left = seconds
        self._removed: Counter[str] = Counter()

    def removed(self) -> Counter[str]:
        """Return the removed secrets by kind, and begin to count again."""
        removed, self._removed = self._removed, Counter()
        return removed

    def text(self, text: str) -> str:
        """Return a text without secrets.

        Raises:
            RedactionTimeoutError: all texts together take too long.
        """
        if "PRIVATE KEY-----" in text:
            text, count = _PRIVATE_KEY.subn(REMOVED, text)
            self._count("private key", count)
        return "\n".join(map(self._one_line, text.split("\n")))

    def words(self, words: Iterable[str]) -> Iterator[str]:
        """Yield the words of a command without secrets."""
        before: list[str] = []
        for word in words:
            if before and hides(before[-1], word, " ".join(before[-2:-1])):
                self._count("value after a flag")
                yield REMOVED
            elif "login" in before and looks_random(word):
                self._count("value after login")
                yield REMOVED
            else:
                yield self.text(word)
            before.append(word)

    def manifest(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Return an object without secrets, in the same structure."""
        made: dict[str, Any] = self._cleared(manifest, "")
        return made

    def node(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Return a node's name, labels and state, without addresses and annotations."""
        kept = {
            part: {name: (manifest.get(part) or {}).get(name) for name in names}
            for part, names in _NODE.items()
        }
        return self.manifest(kept)

    def _one_line(self, line: str) -> str:
        if self._left < 0:
            raise RedactionTimeoutError
        begin = time.thread_time()
        scrubbed, kinds = without_secrets(line)
        self._left -= time.thread_time() - begin
        self._removed.update(kinds)
        return scrubbed

    def _count(self, kind: str, count: int = 1) -> None:
        self._removed.update([kind] * count)

    def _cleared(self, value: Any, field: str) -> Any:
        if isinstance(value, Mapping):
            return dict(self._fields(value, field))
        if isinstance(value, list):
            if value and all(isinstance(each, str) for each in value):
                return list(self.words(value))
            return [self._cleared(each, field) for each in value]
        if not isinstance(value, str):
            return value
        if field not in _REFERENCES and is_secret(field, value):
            self._count("field named like a secret")
            return REMOVED
        return self.text(value)

    def _fields(self, value: Mapping[str, Any], field: str) -> Iterator[tuple[str, Any]]:
        """Yield a mapping's fields; in an item with `name` and `value`, the name decides."""
        name = value.get("name")
        for key, each in value.items():
            if key == "managedFields":
                continue
            if field == "annotations" and isinstance(each, str):
                if key.endswith(_DROPPED_ANNOTATIONS) or len(each) > _LONGEST_ANNOTATION:
                    self._count("annotation")
                    yield key, REMOVED
                    continue
            elif key == "value" and isinstance(each, str) and isinstance(name, str):
                if each and field == "env":
                    self._count("environment variable")
                    yield key, REMOVED
                else:
                    yield key, self._cleared(each, name)
                continue
            yield key, self._cleared(each, key)
