"""Compares an installed CRD with this release's, by its fields and enumerated words.

A digest, or a version in an annotation, would report every difference, such as in descriptions or
in what an API server changes when it stores a CRD (old ones drop CEL rules). But it would not tell
what is missing. Only fields and enumerated words decide what a server drops from jobs, and what it
lets users write that this release does not understand.
"""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

from ddp_operator.api.constants import VERSION
from ddp_operator.api.schema.crd import custom_resource_definition


@dataclass(frozen=True, slots=True)
class Difference:
    """Fields, such as `status.failures[].rank`, and words, such as `spec.backend=gloo`."""

    lacking: frozenset[str] = frozenset()
    """Names of this release that the API server drops or refuses: the installed CRD is older."""
    unknown: frozenset[str] = frozenset()
    """Names of the installed CRD that this release does not have: the CRD is newer."""


def compare(installed: Mapping[str, Any]) -> Difference:
    """Return the differences between an installed CRD, as stored, and the one of this release."""
    ours, theirs = (dict(_names(crd)) for crd in (custom_resource_definition(), installed))
    lacking = _outermost(ours.keys() - theirs.keys(), known=theirs.keys())
    return Difference(
        lacking=frozenset(name for name in lacking if not theirs.get(_parent(name))),
        unknown=_outermost(theirs.keys() - ours.keys(), known=ours.keys()),
    )


def _names(crd: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield all fields and words of `spec` and `status` in this release's API version, and whether
    the API server keeps unknown fields in them.
    """
    for version in crd["spec"]["versions"]:
        if version["name"] == VERSION:
            schema = (version.get("schema") or {}).get("openAPIV3Schema") or {}
            for root, field in (schema.get("properties") or {}).items():
                if root in ("spec", "status"):
                    yield from _names_in(field, root)


def _names_in(node: Mapping[str, Any], path: str) -> Iterator[tuple[str, bool]]:
    yield path, bool(node.get("x-kubernetes-preserve-unknown-fields"))
    for word in node.get("enum") or ():
        yield f"{path}={word}", False
    for name, field in (node.get("properties") or {}).items():
        yield from _names_in(field, f"{path}.{name}")
    if items := node.get("items"):
        yield from _names_in(items, f"{path}[]")
    values = node.get("additionalProperties")
    if isinstance(values, Mapping):
        yield from _names_in(values, f"{path}.*")


def _outermost(names: Set[str], *, known: Set[str]) -> frozenset[str]:
    """Leave out names inside a field that is already named."""
    return frozenset(name for name in names if _parent(name) in known | {""})


def _parent(name: str) -> str:
    if "=" in name:
        return name.partition("=")[0]
    if name.endswith("[]"):
        return name.removesuffix("[]")
    return name.rpartition(".")[0]
