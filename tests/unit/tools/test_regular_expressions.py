"""The operator searches its users' texts with RE2 only, which takes linear time."""

import ast
from pathlib import Path

import ddp_operator

ROOT = Path(ddp_operator.__file__).parent
PACKAGES = ("api", "engine", "job", "kube")
"""Packages that the operator's process reads jobs and pods with."""
SUPERLINEAR = {"re", "regex", "fnmatch", "difflib", "shlex"}
"""Modules that may take quadratic or exponential time."""
ALLOWED = {
    "api/command.py: shlex": "reads at most MAX_SEARCHED characters",
    "api/kubernetes.py: re": "reads the API server's version",
    "api/node_signals.py: re": "reads the administrator's options",
    "api/values/text.py: re": "each match ends before the next escape character, and text may "
    "hold lone surrogates, which RE2 refuses",
    "api/values/quantities.py: re": "matches from the start, and all repetitions are limited",
    "kube/reviews.py: re": "matches from the start, one way only, and text may hold surrogates",
}


def imports(path: Path) -> set[str]:
    """Return the names of the modules that a file imports anywhere."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def test_only_listed_modules_import_engines_that_are_not_linear() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for name in imports(path) & SUPERLINEAR
    }
    assert found == set(ALLOWED)
