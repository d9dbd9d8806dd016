"""Write the wheels of the command line and the Python client."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Final

_ROOT: Final = Path(__file__).parents[2]
PARTS: Final = ("protocol", "operator", "client")
"""Folders of the distributions; each needs those before it."""
_MADE_AT: Final = 946_684_800  # 2000-01-01
_SECONDS: Final = 300
# An earlier build leaves modules in the folder that the source may no longer have.
_LEFT_OUT: Final = ignore_patterns("build", "*.egg-info", "__pycache__")


def build(folder: Path) -> list[Path]:
    """Write the wheels into `folder` and return their paths, in the order of `PARTS`.

    They are made by this environment's setuptools, so nothing is downloaded.
    """
    written: list[Path] = []
    for part in PARTS:
        with tempfile.TemporaryDirectory() as scratch:
            source = copytree(_ROOT / part, Path(scratch, part), ignore=_LEFT_OUT)
            made = Path(scratch, "made")
            subprocess.run(
                [
                    *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"),
                    *("--no-build-isolation", "--no-index", "--wheel-dir", made, source),
                ],
                check=True,
                timeout=_SECONDS,
                env={**os.environ, "SOURCE_DATE_EPOCH": str(_MADE_AT)},
            )
            [wheel] = made.iterdir()
            folder.mkdir(parents=True, exist_ok=True)
            written.append(folder / wheel.name)
            written[-1].write_bytes(wheel.read_bytes())
    return written
