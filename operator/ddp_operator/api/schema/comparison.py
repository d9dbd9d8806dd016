"""Tells an installed CRD of another release from this release's, by the fields and words it knows.

A digest, or a version in an annotation, would say of any difference that there is one: of
descriptions, and of what an API server makes of a CRD that it stores (old ones drop CEL rules); and
nothing of what is missing. What a server drops from jobs, and what it lets users write that this
release does not understand, is in the schema's fields and enumerated words alone.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ddp_operator.api.constants import VERSION
from ddp_operator.api.schema.crd import custom_resource_definition


@dataclass(frozen=True, slots=True)
class Difference:
    """Fields, such as `status.failures[].rank`, and words, such as `spec.backend=gloo`."""

    lacking: frozenset[str] = frozenset()
    """Those of this release that the installed CRD does not know: it is older."""
    unknown: frozenset[str] = frozenset()
    """Those of the installed CRD that this release does not know: it is newer."""


def compare(installed: Mapping[str, Any]) -> Difference:
    """Return what tells an installed CRD, as stored, from the one of this release."""
    ours, theirs = (frozenset(_names(crd)) for crd in (custom_resource_definition(), installed))
    return Difference(
        lacking=_outermost(ours - theirs, known=theirs),
        unknown=_outermost(theirs - ours, known=ours),
    )


def _names(crd: Mapping[str, Any]) -> Iterator[str]:
    """All fields and words of `spec` and `status` in the version that this release speaks."""
    for version in crd["spec"]["versions"]:
        if version["name"] == VERSION:
            schema = (version.get("schema") or {}).get("openAPIV3Schema") or {}
            for root, field in (schema.get("properties") or {}).items():
                if root in ("spec", "status"):
                    yield from _names_in(field, root)


def _names_in(node: Mapping[str, Any], path: str) -> Iterator[str]:
    yield path
    for word in node.get("enum") or ():
        yield f"{path}={word}"
    for name, field in (node.get("properties") or {}).items():
        yield from _names_in(field, f"{path}.{name}")
    if items := node.get("items"):
        yield from _names_in(items, f"{path}[]")
    values = node.get("additionalProperties")
    if isinstance(values, Mapping):
        yield from _names_in(values, f"{path}.*")


def _outermost(names: frozenset[str], *, known: frozenset[str]) -> frozenset[str]:
    """Leave out what lies in a field that is named already."""
    return frozenset(name for name in names if _parent(name) in known | {""})


def _parent(name: str) -> str:
    if "=" in name:
        return name.partition("=")[0]
    if name.endswith("[]"):
        return name.removesuffix("[]")
    return name.rpartition(".")[0]
