"""The health check for Argo CD, in the Lua version that Argo CD runs, on its own test files."""

from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from ddp_operator.api.constants import GROUP
from ddp_operator.api.status import Phase
from lupa import lua51

FOLDER = Path(f"manifests/argo-cd/resource_customizations/{GROUP}/DDPJob")
CASES = yaml.safe_load((FOLDER / "health_test.yaml").read_text())["tests"]


def _health(job: dict[str, Any]) -> dict[str, str]:
    lua = lua51.LuaRuntime()
    lua.globals()["obj"] = lua.table_from(job, recursive=True)
    return dict(lua.execute((FOLDER / "health.lua").read_text()))


@pytest.mark.parametrize("case", CASES, ids=lambda case: Path(case["inputPath"]).stem)
def test_health_of_each_example_is_as_expected(case: dict[str, Any]) -> None:
    job = yaml.safe_load((FOLDER / case["inputPath"]).read_text())
    assert _health(job) == case["healthStatus"]


def test_every_phase_and_file_has_a_case() -> None:
    tested = {FOLDER / case["inputPath"] for case in CASES}
    assert tested == set((FOLDER / "testdata").iterdir())
    jobs = [yaml.safe_load(path.read_text()) for path in tested]
    assert {job["status"]["phase"] for job in jobs if "status" in job} == set(get_args(Phase))


def test_unknown_phase_is_progressing() -> None:
    assert _health({"metadata": {"generation": 1}, "status": {"phase": "Draining"}}) == {
        "status": "Progressing",
        "message": "Draining",
    }
