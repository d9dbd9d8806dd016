"""Find secrets in one line of text, by the name of a value, its place or its form."""

import re
from collections.abc import Callable
from contextlib import suppress
from functools import cache, lru_cache
from typing import Any, Final

import re2

from ddp_client.views.redaction.names import LONGEST, is_secret, may_have_spaces, names_secret

REMOVED: Final = "<removed>"
_MARK: Final = REMOVED.encode()
_LONGEST_LINE: Final = 16_384
_CACHED_LINES: Final = 4096
"""Pods of a job have the same lines."""

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

Span = tuple[int, int]


@lru_cache(_CACHED_LINES)
def without_secrets(line: str) -> tuple[str, tuple[str, ...]]:
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
    if sign not in (b"=", b"=>", b":") and not looks_random(text):  # "the token is invalid"
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
    return span if hides(*(word.decode(errors="replace") for word in words)) else None


def hides(flag: str, value: str, before: str) -> bool:
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
    return (begin, end) if looks_random(match.string[begin:end].decode()) else None


def looks_random(word: str) -> bool:
    """Return True if a word has the form of a key: long, with digits or capitals."""
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
