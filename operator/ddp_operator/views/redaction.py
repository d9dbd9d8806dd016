"""What may leave a cluster in a bug report: objects and logs without what looks like a secret.

Environments lose all their values. In everything else what is named like a secret, or looks like
one, is taken out: rather too much than too little, and still no promise of what programs print.
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
"""Bounded: a program may print what would take for ever to be looked through."""
_LIKE_A_SECRET: Final = re.compile(_WORD, re.IGNORECASE)
_REFERENCES: Final = frozenset({"secretName", "secretKeyRef", "serviceAccountName", "secretRef"})
"""Fields that say where a secret is, not what it is."""
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
    # Of Hugging Face, GitHub, GitLab, OpenAI, Slack, AWS, Google; JSON web tokens.
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
    """A text without what looks like a secret."""
    for shape, instead in _SHAPES:
        text = shape.sub(instead, text)
    text = _SAID.sub(_said, text)
    return _FLAG.sub(rf"\1\2{REMOVED}", text)


def _said(found: re.Match[str]) -> str:
    # What a training says of its tokens are numbers of words.
    is_count = found[2].isdecimal() and "token" in found[1].lower()
    return found[0] if is_count else found[1] + REMOVED


def without_secrets(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """An object as it may be shown to strangers; it stays readable as what it is."""
    made: dict[str, Any] = _cleared(manifest, "")
    return made


def node(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Of a node its name, labels and state: neither addresses nor annotations."""
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
    """A mapping's; in a list of names and values the name tells what the value is."""
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
    """A command's: a flag that is named like a secret has it in the next one."""
    is_next = False
    for word in words:
        yield REMOVED if is_next and not word.startswith("-") else scrubbed(word)
        is_next = word.startswith("-") and bool(_LIKE_A_SECRET.search(word))
