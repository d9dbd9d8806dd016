"""The incidents happen to torchrun in a Job, without the operator.

No outcome is an error: the table shows what happens, next to the operator's verdict.
"""

from __future__ import annotations

import pytest

from tests.chaos.conftest import Victim
from tests.chaos.record import Record
from tests.e2e.jobs import dump
from tests.e2e.kubectl import Kubectl
from tests.incidents.incidents import INCIDENTS
from tests.incidents.scene import Incident
from tests.incidents.table import TORCHRUN
from tests.incidents.torchrun import TorchrunScene

pytestmark = [pytest.mark.nightly, pytest.mark.cluster, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    "incident",
    [incident for incident in INCIDENTS if incident.torchrun],
    ids=lambda incident: incident.name,
)
def test_an_incident_has_an_outcome(
    incident: Incident,
    victim: Victim,
    namespace: Kubectl,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scene = TorchrunScene(victim, namespace, incident, Record())
    try:
        with scene.training():
            outcome = scene.outcome()
    finally:  # what the pods say explains any outcome
        print(dump(victim.environment.kubectl, [], namespace.namespace))
    request.config.stash.setdefault(TORCHRUN, {})[incident.name] = outcome
    with capsys.disabled():
        print(f"\ntorchrun: {incident.what}: {outcome}")
