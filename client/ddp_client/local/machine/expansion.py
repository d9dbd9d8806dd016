"""Kubernetes' `$(NAME)` references in a container's command, arguments and environment."""

import re
from collections.abc import Mapping

# https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables
_REFERENCE = re.compile(r"\$\$|\$\(([^()]*)\)")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by its value and `$$` by `$`. An unknown name stays as written."""

    def replacement(found: re.Match[str]) -> str:
        name = found.group(1)
        return "$" if name is None else variables.get(name, found.group())

    return _REFERENCE.sub(replacement, text)
