"""Commands that take long: their output goes to a log, and an error is one line."""

from __future__ import annotations

import re
import subprocess
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.cluster.errors import ClusterUnavailableError


def run(
    argv: Sequence[str],
    *,
    cwd: Path,
    log: Path,
    lock: int,
    env: Mapping[str, str] | None = None,
    output: Path | None = None,
) -> None:
    """Run a command to its end, its words appended to `log`.

    `lock`: the file descriptor of a lock that the command holds too, for as long as it lives.
    `output`: where its standard output goes instead.

    Raises ClusterUnavailableError, with its last error and the log's place, when it fails.
    """
    with log.open("ab") as words, (output or log).open("ab") as out:
        code = subprocess.run(
            argv,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=words,
            pass_fds=(lock,),
            check=False,
        ).returncode
    if code:
        lines = log.read_text(errors="replace").strip().splitlines()
        errors = [line for line in lines[-40:] if re.match(r"(E|Err|.*error)\b", line)]
        reason = (errors or lines or ["without a word"])[-1].strip()
        command = " ".join(word for word in argv if not re.match(r"-o$|.*::", word))
        command = textwrap.shorten(command, 80, placeholder=" ...")
        raise ClusterUnavailableError(f"{command} failed ({reason}); its log is {log}")
