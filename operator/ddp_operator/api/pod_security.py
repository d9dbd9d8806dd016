"""Pod Security: what `restricted` admits, and the remedies for refusals.

Levels: https://kubernetes.io/docs/concepts/security/pod-security-standards/. The texts of refusals
come from Kubernetes' module `k8s.io/pod-security-admission`, package `policy`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ddp_operator.api.values.limits import MAX_REFUSAL, linear

RESTRICTED_POD: Final[Mapping[str, Any]] = {
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""A securityContext of pods that `restricted` admits in any version."""
RESTRICTED_CONTAINER: Final[Mapping[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}
"""The same for each of its containers, including init containers."""

_MOST_NAMES: Final = 3
_MOST_CHARACTERS: Final = 1000
"""Limits of a remedy: it contains users' names and values."""

_REFUSAL: Final = linear(r'(?s)violates PodSecurity "(\w+):[^"]*": (.+)')
_CHECK: Final = linear(r'([^()"]+) \(((?:"[^"]*"|[^()"])*)\)(?:, |$)')
"""A failed check: its reason, and the details in parentheses."""
_VALUE: Final = linear(r"(?P<who>.+?) must (?P<no>not )?set (?P<field>[\w.]+)(=| to )(?P<value>.+)")
_ITEM: Final = linear(r"(?P<who>.+?) must (?P<no>not )include (?P<value>.+) in (?P<field>[\w.]+)")
_NAME: Final = linear(r'"([^"]*)"')
_INSTEAD: Final = {"true": "false", "false": "true", "Unconfined": "RuntimeDefault"}
"""Values to set instead of forbidden ones."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal of a pod by Pod Security."""

    level: str
    remedy: str
    """The change to the pod's spec; the server's own words if unknown."""


def read_refusal(message: str, pod: Mapping[str, Any]) -> Refusal | None:
    """Parse an API server's refusal of a pod with this spec; None: not by Pod Security."""
    found = _REFUSAL.search(message[:MAX_REFUSAL])
    if found is None:
        return None
    level, checks = found.groups()
    remedy = _remedy(checks, pod)
    if len(remedy) > _MOST_CHARACTERS:
        remedy = f"{remedy[: _MOST_CHARACTERS - 1]}…"
    return Refusal(level, remedy)


def _failed_checks(text: str) -> list[Any] | None:
    """Return the failed checks that a text lists; None: it contains anything else."""
    found: list[Any] = []
    place = 0
    for check in _CHECK.finditer(text):
        if check.start() != place:
            return None
        found.append(check)
        place = check.end()
    return found if place == len(text) else None


def _remedy(checks: str, pod: Mapping[str, Any]) -> str:
    failed = _failed_checks(checks)
    if failed is None:
        return f"change this: {checks}"
    wanted: list[str] = []
    unwanted: list[str] = []
    others: list[str] = []
    for check in failed:
        read = [_VALUE.fullmatch(each) or _ITEM.fullmatch(each) for each in check[2].split("; ")]
        known = [each for each in read if each]
        if len(known) < len(read):
            others.append(f"{check[1]} ({check[2]})")
            continue
        for each in known:
            field = each["field"].removeprefix("securityContext.")
            # The first of several allowed values.
            value = each["value"].split(" or ")[0].replace('"', "")
            fields = unwanted if each["no"] and value not in _INSTEAD else wanted
            if each["no"]:
                value = _INSTEAD.get(value, value)
            if ", " in value:
                value = f"[{value}]"
            holders = _holders(each["who"], pod)
            fields += [f"{holder}securityContext.{field}: {value}" for holder in holders]
    parts = (("set", wanted), ("remove", unwanted), ("change", others))
    return "; ".join(f"{verb} {', '.join(fields)}" for verb, fields in parts if fields)


def _holders(who: str, pod: Mapping[str, Any]) -> Iterable[str]:
    """Yield the paths that a check names: the pod, some of its containers, or both."""
    if who.startswith("pod"):
        yield ""
    if who.startswith("pod or"):
        return  # containers inherit the pod's settings
    left = _NAME.findall(who)
    for kind in ("initContainers", "containers"):
        known = {container.get("name") for container in pod.get(kind) or ()}
        if names := [name for name in left if name in known]:
            yield f"{kind}[{_few(names)}]."
        left = [name for name in left if name not in known]
    if left:
        yield f"(in containers that the template does not have: {_few(left)}) "


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMES])
    more = len(names) - _MOST_NAMES
    return f"{shown} and {more} more" if more > 0 else shown
