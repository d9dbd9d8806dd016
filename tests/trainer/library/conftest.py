"""Undisturbed runs for the tests of this folder."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.trainer.library.runs import Undisturbed, run_with_faults
from tests.trainer.support.pods import Job


@pytest.fixture(autouse=True)
def _without_launcher(no_launcher: None) -> None:
    del no_launcher


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """Return runs without faults on a CPU; other devices must compute the same."""
    known: dict[str, Job] = {}

    def run(
        script: str = "one model",
        /,
        *flags: str,
        ranks: int,
        variables: Mapping[str, str] | None = None,
    ) -> Job:
        key = repr((script, flags, ranks, variables))
        if key not in known:
            folder = tmp_path_factory.mktemp("undisturbed")
            known[key] = run_with_faults(
                folder, [], *flags, ranks=ranks, script=script, variables=variables
            )
        return known[key]

    return run
