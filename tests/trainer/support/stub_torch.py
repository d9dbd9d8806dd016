"""A stub of torch, so that launchers of tests preload it without the seconds of a real import."""

from __future__ import annotations

import os
from pathlib import Path

PRINTS_ITS_IMPORTER = """
import os
print('imported by', 'a rank' if 'RANK' in os.environ else 'nobody')
"""


def stub_torch(folder: Path, text: str = "") -> dict[str, str]:
    """Write the stub below a folder; return the variables with which Python imports it."""
    package = folder / "packages" / "torch"
    package.mkdir(parents=True)
    for module in ("__init__", "_dynamo", "distributed"):
        (package / f"{module}.py").write_text(text if module == "__init__" else "")
    return import_path(folder)


def import_path(folder: Path) -> dict[str, str]:
    """Return the variables with which Python imports the stub below a folder."""
    parents = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    folders = [str(folder / "packages"), *(os.path.abspath(path) for path in parents if path)]
    return {"PYTHONPATH": os.pathsep.join(folders)}
