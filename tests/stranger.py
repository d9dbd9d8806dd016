"""A person who has only the wheels of a release, and torch in another environment."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tools.chart import wheels

TORCH = Path(sys.executable).parent
"""The programs of an environment with torch: that of the tests."""
_SECONDS = 600
_SYSTEM = os.defpath
_OF_THE_TESTS = ("PYTHON", "VIRTUAL_ENV", "DDP_", "KUBECONFIG")


@dataclass(frozen=True)
class Stranger:
    """Runs programs in a project of his own, without this repository."""

    programs: Path
    """The folder `bin` of the environment where the wheels are installed."""
    project: Path
    variables: dict[str, str] = field(default_factory=dict)

    def environment(self, *, torch: bool = True) -> dict[str, str]:
        """Return the variables of his shell; with torch, that environment is active."""
        own = {k: v for k, v in os.environ.items() if not k.startswith(_OF_THE_TESTS)}
        folders = [*([TORCH] if torch else []), self.programs]
        path = os.pathsep.join([*map(str, folders), _SYSTEM])
        return {**own, "PATH": path, **self.variables}

    def run(self, *words: str, torch: bool = True) -> subprocess.CompletedProcess[str]:
        """Run `ddp` with these words."""
        return subprocess.run(
            [str(self.programs / "ddp"), *words],
            cwd=self.project,
            env=self.environment(torch=torch),
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )


def install(folder: Path) -> Path:
    """Install the wheels of a release in an empty environment; return its folder of programs.

    pip gets the libraries where this machine's configuration says.
    """
    packages = wheels.build(folder / "dist")
    environment = folder / "environment"
    base = Path(sys.base_prefix, "bin", "python{}.{}".format(*sys.version_info))
    subprocess.run([base, "-m", "venv", environment], check=True, timeout=_SECONDS)
    programs = environment / "bin"
    subprocess.run(
        [programs / "python", "-I", "-m", "pip", "install", "--quiet", "--no-compile", *packages],
        check=True,
        timeout=_SECONDS,
    )
    return programs
