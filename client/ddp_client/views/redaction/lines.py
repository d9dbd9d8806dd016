"""Remove secrets from the objects and logs of a bug report.

Environment variables lose all their values. Elsewhere a value is removed because of its name
(`DB_PASS=…`, `--wandb-key …`), its place (a header, a URL, after `login`) or its form: the tokens
that start with a known prefix, and those that detect-secrets knows. This removes too much rather
than too little, but a secret without any of these signs stays.

The text comes from pods: all expressions are RE2's, lines are cut, and the time is limited.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from typing import Any, Final

import re2

from ddp_client.views.secret_names import LONGEST, is_secret, may_have_spaces, names_secret

REMOVED: Final = "<removed>"
_MARK: Final = REMOVED.encode()
_LONGEST_LINE: Final = 16_384
_SECONDS: Final = 60.0
_CACHED_LINES: Final = 4096
"""Pods of a job have the same lines."""
_REFERENCES: Final = frozenset({"secretName", "secretKeyRef", "serviceAccountName", "secretRef"})
"""Fields that name a secret but do not contain it."""

_NAMED: Final = re2.compile(
    rf"""([\w.-]{{1,{LONGEST}}})\\?["']?\]?\s{{0,9}}(=>|[=:]|\bis\s)\s{{0,9}}"""
)
_FLAG: Final = re2.compile(rf"""(?:^|[\s"'(])(--?[A-Za-z][\w.-]{{0,{LONGEST}}})(?:\s{{1,9}})""")
_NEXT: Final = rf"""[;&,]\s{{0,3}}["']?[\w.-]{{1,{LONGEST}}}["']?\s{{0,3}}[=:]"""
"""The next name in `password=a;b;user=c`."""
_QUOTED: Final = r"""\\"((?:[^"\\]|\\[^"])*)|"((?:[^"\\]|\\.)*)|'((?:[^'\\]|\\.)*)|"""
_UNQUOTED: Final = 4
_WORD: Final = re2.compile(_QUOTED + r"""([^\s"'][^\s"'`]*)""")
"""The value of a flag."""
_VALUE: Final = re2.compile(rf"""{_QUOTED}(`?[^\s"'`]*?)(?:{_NEXT}|[\s"'`]|$)""")
_PHRASE: Final = re2.compile(rf"(.+?)(?:{_NEXT}|$)")
"""A password of several words."""
_HEADER: Final = re2.compile(
    r"""(?i)\b(?:authorization|cookie)\\?["']?\s{0,9}[:=]\s{0,9}["']?(.+)|"""
    r"""\bBearer\s{1,9}([A-Za-z0-9._~+/=-]{8,})"""
)
_USER_INFO: Final = re2.compile(r"""://([^/\s"'<>]+)@([^/\s"'<>]*)""")
_QUERY: Final = re2.compile(r"""[?&](?:amp;)?([\w.-]{1,64})=([^&\s"'<>#;]+)""")
_SIGNS: Final = ("sig", "signature", "credential", "code", "auth", "key", "hmac")
"""Ends of the names of a signed URL's parameters."""
_LOGIN: Final = re2.compile(r"""\blogin((?:\s+-\S+)*)\s+["']?([\w-]{16,})""")
_DATABASE: Final = re2.compile(r"""\b(?:mysql|mariadb|mongo)\w*(?:\s[^|;&]*)?\s-p([^\s"']+)""")
_TOKEN: Final = re2.compile(
    r"\b(?:hf_|gh[pousr]_|github_pat_|gl(?:pat|dt|rt|ft|soat|imt|cbt|ptt|oas)-|sk-|xox[a-z]-|npm_|"
    r"dckr_[a-z]{3}_|pypi-|nvapi-|wandb_v1_|gsk_|r8_|tskey-|dop_v1_|glsa_|hvs\.|dapi|AIza|ya29\.|"
    r"AGE-SECRET-KEY-)[\w-]{16,}"
)
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

Span = tuple[int, int]


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
            if before and _hides(before[-1], word, " ".join(before[-2:-1])):
                self._count("value after a flag")
                yield REMOVED
            elif "login" in before and _looks_random(word):
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
        scrubbed, kinds = _line(line)
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


@lru_cache(_CACHED_LINES)
def _line(line: str) -> tuple[str, tuple[str, ...]]:
    """Return a line without secrets, and the kinds of those that were in it."""
    if len(line) > _LONGEST_LINE:
        line = f"{line[: _LONGEST_LINE - 1]}…"
    data, kinds = line.encode(errors="replace"), list[str]()
    for kind, expression, span in _FINDERS:
        data = _without(data, expression, span, kind, kinds)
    data = _without(data, _known_tokens(), _group, "token", kinds)
    return data.decode(), tuple(kinds)


def _without(
    line: bytes, expression: Any, span: Callable[[Any], Span | None], kind: str, kinds: list[str]
) -> bytes:
    """Return the line without what an expression finds.

    Bytes, because RE2 would convert a text at each search within it.
    """
    kept, at = list[bytes](), 0
    for match in expression.finditer(line):
        if match.start() < at:  # in what was removed
            continue
        begin, end = span(match) or (0, 0)
        if not line[begin:end].replace(_MARK, b""):
            continue
        kept += [line[at:begin], _MARK]
        kinds.append(kind)
        at = end
    return b"".join([*kept, line[at:]])


def _group(match: Any) -> Span:
    """Return the group that matches, or all of the match."""
    return match.span(match.lastindex or 0)  # type: ignore[no-any-return]


def _named(match: Any) -> Span | None:
    """Return the value after a name, if the name is that of a secret."""
    name, sign, line = match[1].decode(), match[2], match.string
    # The name first: values can be long, and each of them can have many names.
    if not names_secret(name) or (value := _VALUE.match(line, match.end())) is None:
        return None
    is_unquoted = value.lastindex == _UNQUOTED
    if is_unquoted and sign == b":" and may_have_spaces(name):
        value = _PHRASE.match(line, match.end()) or value
    begin, end = _group(value)
    if is_unquoted:
        end = begin + len(line[begin:end].rstrip(b" ,;)]}"))
    text = line[begin:end].decode(errors="replace")
    if sign not in (b"=", b"=>", b":") and not _looks_random(text):  # "the token is invalid"
        return None
    return (begin, end) if is_secret(name, text) else None


def _flagged(match: Any) -> Span | None:
    """Return the value after a flag."""
    value = _WORD.match(match.string, match.end())
    if value is None:
        return None
    begin, end = span = _group(value)
    before = match.string[max(0, match.start() - LONGEST) : match.start()].rstrip()
    words = (match[1], match.string[begin:end], before)
    return span if _hides(*(word.decode(errors="replace") for word in words)) else None


def _hides(flag: str, value: str, before: str) -> bool:
    """Return True if a flag's value is a secret; `before`: what is before the flag."""
    if not flag.startswith("-") or "=" in flag or value.startswith("-"):
        return False
    if flag in ("-u", "--user", "--proxy-user"):
        user, colon, password = value.partition(":")
        return bool(colon and password) and not (user.isdecimal() and password.isdecimal())
    if flag == "-p":
        is_port = value.replace(":", "").replace(".", "").isdecimal()
        return not (is_port or value.startswith((".", "/")) or before.endswith("mkdir"))
    if flag == "-a":
        return "redis-cli" in before
    return is_secret(flag.lstrip("-"), value)


def _user_info(match: Any) -> Span | None:
    """Return user and password of a URL; an image's name before its digest is none."""
    return None if match[2].startswith(b"sha256:") else match.span(1)


def _parameter(match: Any) -> Span | None:
    name, value = match[1].decode(), match[2].decode(errors="replace")
    return match.span(2) if name.lower().endswith(_SIGNS) or is_secret(name, value) else None


def _random(match: Any) -> Span | None:
    begin, end = _group(match)
    return (begin, end) if _looks_random(match.string[begin:end].decode()) else None


def _looks_random(word: str) -> bool:
    is_mixed = any(each.isdigit() or each.isupper() for each in word)
    return len(word) >= 16 and (is_mixed or (len(word) > 30 and word[-30:].isalpha()))


_FINDERS: Final[tuple[tuple[str, Any, Callable[[Any], Span | None]], ...]] = (
    ("header", _HEADER, _group),
    ("user of a URL", _USER_INFO, _user_info),
    ("signature of a URL", _QUERY, _parameter),
    ("value after login", _LOGIN, _random),
    ("value after a flag", _DATABASE, _group),
    ("value after a flag", _FLAG, _flagged),
    ("value named like a secret", _NAMED, _named),
    ("token", _TOKEN, _random),
)
"""Expressions by the kind of secret that they find, with the function that returns its place."""


@cache
def _known_tokens() -> Any:
    """Return one expression for all tokens that detect-secrets knows.

    Its own search uses Python's `re`, which can take exponential time on the text of pods. RE2
    refuses a few expressions with names of keys; `is_secret` knows those names.
    """
    # Here, because neither the operator nor most commands need it.
    from detect_secrets.core.plugins.util import (  # noqa: PLC0415
        get_mapping_from_secret_type_to_class,
    )

    options = re2.Options()
    options.never_capture, options.log_errors = True, False
    accepted = []
    for plugin in get_mapping_from_secret_type_to_class().values():
        for known in getattr(plugin, "denylist", ()):
            flag = "i" if known.flags & re.IGNORECASE else ""
            with suppress(re2.error):
                accepted.append(re2.compile(f"(?{flag}:{known.pattern})", options).pattern)
    return re2.compile("|".join(accepted), options)
