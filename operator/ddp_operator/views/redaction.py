"""Remove secrets from the objects and logs of a bug report.

Environment variables lose all their values. Elsewhere, values that are named or look like a secret
are removed. This removes too much rather than too little, but it cannot find every secret that a
program prints.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

REMOVED: Final = "<removed>"
_WORD: Final = (
    r"(?:passw(?:or)?d|passphrase|secret|token(?!s|iz)|api[_-]?key|access[_-]?key"
    r"|private[_-]?key|credential|authorization|connection[_-]?string)"
)
_NAME: Final = rf"[\w.-]{{0,48}}{_WORD}[\w.-]{{0,48}}"
"""Bounded, so that no output of a program can make the search take very long."""
_LIKE_A_SECRET: Final = re.compile(_WORD, re.IGNORECASE)
_REFERENCES: Final = frozenset({"secretName", "secretKeyRef", "serviceAccountName", "secretRef"})
"""Fields that name a secret but do not contain it."""
_SAID: Final = re.compile(
    rf"""(?<![\w.-])({_NAME}["']?\s{{0,9}}[=:]\s{{0,9}}["']?)([^\s"',;&]{{4,}})""", re.IGNORECASE
)
"""`WANDB_API_KEY=…`, `"password": "…"`."""
_FLAG: Final = re.compile(
    rf"""(?<![\w.-])(--?{_NAME})(\s{{1,9}}["']?)(?![-\s"'])[^\s"',;&]+""", re.IGNORECASE
)
_SHAPES: Final = (
    (re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"), REMOVED),
    (re.compile(r"\b(Bearer)\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE), rf"\1 {REMOVED}"),
    (re.compile(r"(\bauthorization[\"']?\s{0,9}[:=]\s{0,9}).*", re.IGNORECASE), rf"\1{REMOVED}"),
    # Tokens of Hugging Face, GitHub, GitLab, OpenAI, Slack, AWS and Google; JSON web tokens.
    (re.compile(r"\b(?:hf_|gh[pousr]_|github_pat_|glpat-|sk-|xox[abpr]-)[\w-]{16,}"), REMOVED),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bAIza[\w-]{30,}|\bya29\.[\w-]{20,}"), REMOVED),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"), REMOVED),
    (
        re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z)", re.DOTALL),
        REMOVED,
    ),
)
_DROPPED_ANNOTATIONS: Final = ("last-applied-configuration", "last-applied")
_LONGEST_ANNOTATION: Final = 1024
_NODE: Final = {
    "metadata": ("name", "labels", "creationTimestamp"),
    "spec": ("taints", "unschedulable"),
    "status": ("conditions", "nodeInfo", "allocatable", "capacity"),
}


def scrubbed(text: str) -> str:
    """Return a text without anything that looks like a secret."""
    for shape, instead in _SHAPES:
        text = shape.sub(instead, text)
    text = _SAID.sub(_said, text)
    return _FLAG.sub(rf"\1\2{REMOVED}", text)


def _said(found: re.Match[str]) -> str:
    # "tokens: 4096" in a training log is a count.
    is_count = found[2].isdecimal() and "token" in found[1].lower()
    return found[0] if is_count else found[1] + REMOVED


def without_secrets(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object without secrets, in the same structure."""
    made: dict[str, Any] = _cleared(manifest, "")
    return made


def node(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a node's name, labels and state, without addresses and annotations."""
    kept = {
        part: {name: (manifest.get(part) or {}).get(name) for name in names}
        for part, names in _NODE.items()
    }
    return without_secrets(kept)


def _cleared(value: Any, field: str) -> Any:
    if isinstance(value, Mapping):
        return dict(_fields(value, field))
    if isinstance(value, list):
        if value and all(isinstance(each, str) for each in value):
            return list(_words(value))
        return [_cleared(each, field) for each in value]
    if isinstance(value, str):
        named = field not in _REFERENCES and _LIKE_A_SECRET.search(field)
        return REMOVED if value and named else scrubbed(value)
    return value


def _fields(value: Mapping[str, Any], field: str) -> Iterator[tuple[str, Any]]:
    """Yield a mapping's fields; in an item with `name` and `value`, the name decides."""
    name = value.get("name")
    for key, each in value.items():
        if key == "managedFields":
            continue
        if field == "annotations" and isinstance(each, str):
            if key.endswith(_DROPPED_ANNOTATIONS) or len(each) > _LONGEST_ANNOTATION:
                yield key, REMOVED
                continue
        elif key == "value" and isinstance(each, str) and isinstance(name, str):
            yield key, REMOVED if each and field == "env" else _cleared(each, name)
            continue
        yield key, _cleared(each, key)


def _words(words: list[str]) -> Iterator[str]:
    """Yield the words of a command; the word after a flag named like a secret is removed."""
    is_next = False
    for word in words:
        yield REMOVED if is_next and not word.startswith("-") else scrubbed(word)
        is_next = word.startswith("-") and bool(_LIKE_A_SECRET.search(word))
