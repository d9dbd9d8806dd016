"""The software bill of materials of the operator's image."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]


def recipe() -> list[str]:
    """The words of the Makefile's command."""
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    [command] = re.findall(r"^\t\$\(PY\) (-m cyclonedx_py .*)$", makefile, re.MULTILINE)
    assert isinstance(command, str)
    return command.split()


def test_it_lists_every_pin_and_nothing_else(tmp_path: Path) -> None:
    words = recipe()
    words[words.index("--output-file") + 1] = str(tmp_path / "sbom.json")
    subprocess.run([sys.executable, *words], cwd=ROOT, check=True, capture_output=True)
    sbom: dict[str, Any] = json.loads((tmp_path / "sbom.json").read_text())
    assert sbom["bomFormat"] == "CycloneDX"
    assert sbom["metadata"]["component"]["name"] == "ddp-operator"
    listed = {f"{part['name']}=={part['version']}" for part in sbom["components"]}
    pins = (ROOT / "requirements/operator.txt").read_text()
    assert listed == set(re.findall(r"^[\w.-]+==[^\s\\]+", pins, re.MULTILINE))
    assert len(listed) > 30
