"""The examples of manifests: what their scripts need is there, and a page names each of them."""

import ast
import re
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "manifests" / "examples").rglob("*.yaml"))
HAVE_SCRIPTS = [path for path in EXAMPLES if "train.py: |" in path.read_text()]
IN_THE_IMAGE = {"torch", "ddp_trainer", *sys.stdlib_module_names}


def imported(script: str) -> set[str]:
    """Return the names of the packages that a script imports."""
    names: list[str] = []
    for node in ast.walk(ast.parse(script)):
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("example", HAVE_SCRIPTS, ids=lambda path: path.stem)
def test_packages_of_a_script_are_in_the_image_or_installed(example: Path) -> None:
    documents = [*yaml.safe_load_all(example.read_text())]
    [script] = (one for one in documents if one["kind"] == "ConfigMap")
    for job in (one for one in documents if one["kind"] == "DDPJob"):
        pod = job["spec"]["template"]["spec"]
        words = [word for init in pod.get("initContainers", ()) for word in init["command"]]
        packages = {re.split("[<>=]", word)[0] for word in words}
        assert imported(script["data"]["train.py"]) <= IN_THE_IMAGE | packages


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_a_page_names_the_example(example: Path) -> None:
    name = str(example.relative_to(ROOT))
    assert any(name in page.read_text() for page in (ROOT / "docs").rglob("*.md"))
