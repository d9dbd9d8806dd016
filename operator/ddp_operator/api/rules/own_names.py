"""Rules that keep the operator's own account and Secrets out of pods of jobs."""

from typing import Any

from ddp_operator.api.constants import SERVICE_ACCOUNT, TOKEN_SECRETS
from ddp_operator.api.rules.rule import Rule
from ddp_operator.api.rules.trainer import pod_spec
from ddp_operator.api.spec import DDPJobSpec

_MOST_CHARACTERS = 200
"""Limit of a path in a message: its parts are users' names."""
_FIELDS = ("serviceAccountName", "serviceAccount")
"""The field, and its deprecated alias."""

_Link = tuple[Any, str | int, Any]
"""A part of the template: the part that has it, its key there, and its value. A path becomes text
only for a message, because texts of all paths could be much longer than the template."""


def _token_secret(spec: DDPJobSpec) -> str:
    """Return the path of a field that names a Secret with tokens, or an empty text.

    Many fields can name one, and drivers of volumes add their own. So every text is compared.
    """
    left: list[_Link] = [(None, "spec.template.spec", pod_spec(spec))]
    while left:
        link = left.pop()
        value = link[2]
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(item, str):
                if item.startswith(TOKEN_SECRETS):
                    return _path((link, key, item))
            elif item and isinstance(item, dict | list):
                left.append((link, key, item))
    return ""


def _path(link: _Link) -> str:
    steps: list[str] = []
    while link[0]:
        steps.append(f"[{link[1]}]" if isinstance(link[1], int) else f".{link[1]}")
        link = link[0]
    path = "".join((str(link[1]), *reversed(steps)))
    return path if len(path) <= _MOST_CHARACTERS else f"{path[: _MOST_CHARACTERS - 1]}…"


OWN_NAME_RULES = (
    Rule(
        f"spec.template.spec.serviceAccountName: {SERVICE_ACCOUNT} is the operator's own account, "
        "which may act on all jobs; name another ServiceAccount, or remove it",
        " && ".join(
            f"(!has(self.spec.{field}) || self.spec.{field} != '{SERVICE_ACCOUNT}')"
            for field in _FIELDS
        ),
        lambda spec: all(pod_spec(spec).get(field) != SERVICE_ACCOUNT for field in _FIELDS),
        on="template",
    ),
    Rule(
        f"spec.template.spec: names a Secret that starts with {TOKEN_SECRETS}, which has the "
        "operator's key or tokens of jobs; remove it, because the operator gives each pod its own "
        "token",
        "!has(self.spec.volumes) || self.spec.volumes.all(v, !has(v.secret)"
        " || !has(v.secret.secretName)"
        f" || !v.secret.secretName.startsWith('{TOKEN_SECRETS}'))",
        lambda spec: not _token_secret(spec),
        _token_secret,
        cel_sees_all=False,
        on="template",
    ),
)
