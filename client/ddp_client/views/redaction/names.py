"""Tell by its name whether a value is a secret: of a field, a variable, a flag, or in a log line.

The value counts only where the same name has other common uses: `token: 4096`.
"""

import re
from typing import Final

LONGEST: Final = 64
"""Most characters of a name."""
_SEGMENT: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_ANYWHERE: Final = (
    *("password", "passwd", "passphrase", "secret", "credential", "authorization", "apikey"),
    *("accesskey", "accountkey", "privatekey", "sharedkey", "encryptionkey", "signingkey"),
    *("sshkey", "authkey", "masterkey", "connectionstring", "sharedaccesssignature"),
)
"""Parts of names without separators; all of them are certain."""
_DESCRIBES: Final = frozenset(
    {"name", "names", "ref", "file", "path", "dir", "mount", "type", "length", "len", "count"}
    | {"size", "url", "ttl", "expires", "expiry", "expiration", "rotation", "error", "errors"}
)
"""Last words of names that are not those of the secret itself: `TOKEN_FILE`, `secretName`."""
_LAST: Final = frozenset({"token", "pass", "pwd", "pw", "auth", "jwt", "sas", "cookie", "creds"})
_JOINED: Final = ("token", "pass", "pwd")
"""Last words that names join to others without a separator: `PGPASS`, `authtoken`."""
_NOT_JOINED: Final = frozenset({"pwd", "oldpwd", "bypass", "compass", "encompass", "trespass"})
_COUNTED: Final = frozenset(
    {"eos", "bos", "pad", "unk", "cls", "sep", "mask", "image", "special", "next", "stop", "per"}
    | {"num", "max", "min", "total", "new", "input", "output", "prompt", "unexpected"}
)
"""Words before `token` in the words of language models and parsers."""
_NO_SECRET_KEYS: Final = frozenset(
    {"topology", "primary", "foreign", "public", "sort", "cache", "partition", "group", "label"}
    | {"labels", "state", "dict", "map", "config", "batch", "field", "json", "hash", "store"}
    | {"barrier", "index", "column", "row", "dataset", "data", "model", "input", "output"}
    | {"lookup", "object", "metric", "host", "node", "pod", "job", "task", "param", "parameter"}
    | {"missing", "unexpected", "taint", "selector", "routing", "shard", "sharding", "query"}
    | {"checkpoint", "layer", "module", "attention", "bucket", "env", "annotation", "default"}
    | {"tag", "attribute", "registry", "event", "loss", "step", "rank", "match", "random"}
)
"""Words before `key` in names of other things."""
_PASSES: Final = frozenset({"forward", "backward", "first", "second", "last", "warmup", "eval"})
_QUANTITY: Final = re.compile(r"[-+]?\d{1,12}(\.\d{1,12})?(e[-+]?\d{1,3})?(%|[a-zA-Z]{1,3})?")
_NO_VALUE: Final = re.compile(
    r"true|false|none|null|nil|yes|no|on|off|ok|done|failed|<[^>]{0,60}>|\*{3,}|\$\{?[A-Z_][A-Z0-9_]*\}?",
    re.IGNORECASE,
)
"""Also a reference to a variable, which is not its value."""
_PASSWORD: Final = re.compile(r"pass(word|wd|phrase)?$", re.IGNORECASE)


def names_secret(name: str) -> bool:
    """Return True if a value with this name may be a secret."""
    parts = _parts(name)
    if not parts or parts[-1] in _DESCRIBES:
        return False
    return _is_certain(parts) or _is_by_last(parts)


def is_secret(name: str, value: str) -> bool:
    """Return True if a value with this name is a secret."""
    if not names_secret(name) or not value or _NO_VALUE.fullmatch(value[: 4 * LONGEST]):
        return False
    # A count or a time; no variable of the environment with such a name has one.
    is_quantity = not name.isupper() and _QUANTITY.fullmatch(value) is not None
    return _is_certain(_parts(name)) or not is_quantity


def may_have_spaces(name: str) -> bool:
    """Return True for a password: `password: correct horse`."""
    return _PASSWORD.search(name[-LONGEST:]) is not None


def _parts(name: str) -> list[str]:
    return [part.lower() for part in _SEGMENT.findall(name[-LONGEST:])]


def _is_certain(parts: list[str]) -> bool:
    return any(word in "".join(parts) for word in _ANYWHERE)


def _is_by_last(parts: list[str]) -> bool:
    last, before = parts[-1], parts[-2] if len(parts) > 1 else ""
    if last == "key":
        return bool(before) and before not in _NO_SECRET_KEYS
    if last in _LAST:
        others = {"token": _COUNTED, "pass": _PASSES}.get(last, frozenset())
        return before not in others and not (last == "pwd" and not before)
    return last.endswith(_JOINED) and last not in _NOT_JOINED
