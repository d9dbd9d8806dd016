"""Reads NCCL's variables for this node's network fabric from a script on the node."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Mapping

SCRIPT_VARIABLE = "DDP_NCCL_ENV_SCRIPT"
"""Path of the script; the operator sets it."""
_SECONDS = 60.0
_SHELL = "/bin/bash"
_SOURCE = 'set -a; . "$0" >&2 && exec env -0'

_logger = logging.getLogger(__name__)


class NodeEnvironmentError(Exception):
    """The script cannot be sourced; it may work on another node or later."""


def with_node_environment(env: Mapping[str, str]) -> Mapping[str, str]:
    """Return `env` with the variables that the node's script sets, if there is one.

    NCCL variables that are already set come from the job and stay.

    Raises:
        NodeEnvironmentError: the script cannot be sourced.
    """
    script = env.get(SCRIPT_VARIABLE)
    if not script:
        return env
    remedy = "is the node's NCCL plugin installed?"
    try:
        done = subprocess.run(
            [_SHELL, "-c", _SOURCE, script],
            env=dict(env),
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NodeEnvironmentError(
            f"{SCRIPT_VARIABLE}: cannot source {script}: {error}; {remedy}"
        ) from error
    said = done.stderr.decode(errors="replace").strip()
    if done.returncode != 0:
        raise NodeEnvironmentError(
            f"{SCRIPT_VARIABLE}: cannot source {script}: {said[-500:]}; {remedy}"
        )
    entries = done.stdout.decode(errors="surrogateescape").split("\0")
    found = dict(entry.split("=", 1) for entry in entries if "=" in entry)
    chosen = {name: value for name, value in env.items() if name.startswith("NCCL_")}
    told = sorted(name for name in found.keys() - chosen.keys() if name.startswith("NCCL_"))
    _logger.info("%s sets %s", script, ", ".join(told) or "no NCCL variable")
    # Ranks do not need the shell's own variables.
    shells = {"_", "SHLVL", "PWD", "OLDPWD"} - env.keys()
    return {**{k: v for k, v in found.items() if k not in shells}, **chosen}
