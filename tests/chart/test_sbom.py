"""The bills of materials of the images' Python packages."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parents[2]
LOCKS: Final = {
    "ddp-operator-python": "operator",
    "ddp-client-python": "client",
    "ddp-trainer-cpu-python": "trainer-cpu",
    "ddp-trainer-cuda-python": "trainer-cuda",
}


@pytest.mark.nightly
def test_sbom_lists_exactly_the_locked_packages_with_hashes(tmp_path: Path) -> None:
    # No test installs packages, even if the environment is out of date.
    command = ["make", "--old-file=.venv/.installed", "sbom", f"SBOM={tmp_path}"]
    environment = {key: text for key, text in os.environ.items() if not key.startswith("MAKE")}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    assert {path.name.removesuffix(".cdx.json") for path in tmp_path.iterdir()} == LOCKS.keys()
    for name, lock in LOCKS.items():
        sbom: dict[str, Any] = json.loads((tmp_path / f"{name}.cdx.json").read_text())
        assert sbom["bomFormat"] == "CycloneDX"
        assert name.startswith(sbom["metadata"]["component"]["name"])
        listed = {
            f"{part['name']}=={part['version']}": {
                digest["content"]
                for reference in part["externalReferences"]
                for digest in reference.get("hashes", ())
            }
            for part in sbom["components"]
        }
        text = (ROOT / f"requirements/{lock}.txt").read_text()
        locked = re.findall(r"(?m)^([\w.-]+==[^\s\\]+).*\\\n((?:    --hash.*\n)+)", text)
        assert listed == {pin: set(re.findall("[0-9a-f]{64}", hashes)) for pin, hashes in locked}
        assert len(listed) > 25
