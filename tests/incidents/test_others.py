"""The incidents happen to jobs of other controllers, without the operator.

No outcome is an error: the table shows what happens, next to the operator's verdict.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.chaos.conftest import Victim
from tests.chaos.record import Record
from tests.e2e.converted.peers import running_peers
from tests.e2e.jobs import dump
from tests.e2e.kubectl import Kubectl
from tests.incidents.incidents import INCIDENTS
from tests.incidents.others import OtherScene
from tests.incidents.peers import JobSetScene, TrainJobScene
from tests.incidents.scene import Incident
from tests.incidents.table import OUTCOMES, Column
from tests.incidents.torchrun import TorchrunScene

pytestmark = [pytest.mark.nightly, pytest.mark.cluster, pytest.mark.timeout(900)]

SCENES: dict[Column, type[OtherScene]] = {
    "torchrun": TorchrunScene,
    "JobSet": JobSetScene,
    "TrainJob": TrainJobScene,
}


@pytest.fixture(scope="module", params=SCENES)
def column(
    request: pytest.FixtureRequest, victim: Victim, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Column]:
    """The controllers of a column; those of JobSet and Trainer judge all pods while they run."""
    name: Column = request.param
    scratch: Path = tmp_path_factory.mktemp("peers")
    needed = name != "torchrun"
    with (
        running_peers(victim.environment.kubectl, scratch, victim.node) if needed else nullcontext()
    ):
        yield name


@pytest.mark.parametrize(
    "incident",
    [incident for incident in INCIDENTS if incident.others],
    ids=lambda incident: incident.name,
)
def test_an_incident_has_an_outcome(
    column: Column,
    incident: Incident,
    victim: Victim,
    namespace: Kubectl,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scene = SCENES[column](victim, namespace, incident, Record())
    try:
        with scene.training():
            outcome = scene.outcome()
    finally:  # what the pods say explains any outcome
        print(dump(victim.environment.kubectl, [], namespace.namespace))
    request.config.stash.setdefault(OUTCOMES, {})[column, incident.name] = outcome.text()
    with capsys.disabled():
        print(f"\n{column}: {incident.what}: {outcome.text()}")
