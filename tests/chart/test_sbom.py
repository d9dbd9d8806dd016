"""The software bill of materials of the operator's image."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parents[2]


def command_line() -> list[str]:
    """Return the arguments of the Makefile's command."""
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    [command] = re.findall(r"^\t\$\(PY\) (-m cyclonedx_py .*)$", makefile, re.MULTILINE)
    assert isinstance(command, str)
    return command.split()


@pytest.mark.nightly
def test_sbom_lists_exactly_the_pinned_packages(tmp_path: Path) -> None:
    words = command_line()
    words[words.index("--output-file") + 1] = str(tmp_path / "sbom.json")
    subprocess.run([sys.executable, *words], cwd=ROOT, check=True, capture_output=True)
    sbom: dict[str, Any] = json.loads((tmp_path / "sbom.json").read_text())
    assert sbom["bomFormat"] == "CycloneDX"
    assert sbom["metadata"]["component"]["name"] == "ddp-operator"
    listed = {f"{part['name']}=={part['version']}" for part in sbom["components"]}
    pins = (ROOT / "requirements/operator.txt").read_text()
    assert listed == set(re.findall(r"^[\w.-]+==[^\s\\]+", pins, re.MULTILINE))
    assert len(listed) > 30
