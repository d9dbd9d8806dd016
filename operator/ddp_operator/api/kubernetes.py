"""Kubernetes releases that the operator and its CRD work with."""

import re
from typing import Final

OLDEST: Final = (1, 30)
"""First release that does not evaluate the rules of an unchanged spec again. So the operator can
write the status of a job that is older than a rule. It also serves ValidatingAdmissionPolicies."""

NATIVE_GANGS: Final = (1, 37)
"""First release with the beta API of Kubernetes' own gangs."""

_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)")


def release(git_version: str) -> tuple[int, int] | None:
    """Return major and minor number of an API server's `gitVersion`, or None if it has none."""
    found = _VERSION.match(git_version)
    return (int(found[1]), int(found[2])) if found else None


def in_words(number: tuple[int, int]) -> str:
    """Return a release as people write it, such as 1.30."""
    return "{}.{}".format(*number)
