"""Each incident of a bad night: it is injected, nobody helps, and the job must train to its end.

`make incidents` prints a table of the verdicts and writes it to docs/concepts/incidents.md.
"""

from __future__ import annotations

import pytest

from tests.chaos.conftest import Victim
from tests.chaos.record import recording
from tests.e2e.environment import OPERATOR_NAMESPACE
from tests.e2e.jobs import dump
from tests.e2e.kubectl import Kubectl
from tests.incidents.incidents import INCIDENTS
from tests.incidents.scene import Incident, Scene
from tests.incidents.table import ROWS, Row

pytestmark = [pytest.mark.nightly, pytest.mark.cluster, pytest.mark.timeout(900)]


@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda incident: incident.name)
def test_a_job_survives(
    incident: Incident,
    victim: Victim,
    namespace: Kubectl,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if incident.queued:
        request.getfixturevalue("kueue")
    with recording(victim.node.client, namespace.namespace) as record:
        scene = Scene(victim, namespace, incident, record)
        try:
            with scene.training():
                incident.inject(scene)
                scene.job.wait_until("Succeeded")
                seen = scene.seen()
            complaints = seen.complaints(incident.expected)
            row = Row.of(incident, seen, complaints)
            request.config.stash.setdefault(ROWS, []).append(row)
            with capsys.disabled():  # the whole table comes only minutes later
                print(f"\n{row.text()}")
            assert not complaints, "\n".join(complaints)
        except BaseException:
            print(dump(victim.environment.kubectl, [namespace.namespace], OPERATOR_NAMESPACE))
            raise
