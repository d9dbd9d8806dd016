"""Effects of DDP's options, on two ranks of one group."""

from __future__ import annotations

import json
import sys

import pytest

from tests.trainer.settings.option_checks import CHECKS
from tests.trainer.support.pods import job


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """Return the failed checks of each rank; one group runs all checks."""
    folder = tmp_path_factory.mktemp("options")
    command = ("--", sys.executable, "-m", "tests.trainer.settings.option_checks", str(folder))
    with job(folder, nodes=1, local_world_size=2) as two:
        pod = two.start(0, *command)
        assert pod.wait() == 0, pod.log
    return [json.loads((folder / f"rank-{rank}").read_text()) for rank in range(2)]


@pytest.mark.parametrize("check", [check.__name__ for check in CHECKS])
def test_an_option_has_its_effect(check: str, failures: list[dict[str, str]]) -> None:
    for of_rank in failures:
        assert check not in of_rank, of_rank[check]
