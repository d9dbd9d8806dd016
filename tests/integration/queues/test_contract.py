"""The real Kueue passes the scenarios of its contract, as its model in `tests/simulation` does.

Those of MultiKueue are in `test_multikueue.py`.
"""

import pytest
from ddp_operator.kube import ApiClient

from tests.integration.kubelet import FakeKubelet
from tests.integration.queues.real_kueue import RealKueue
from tests.simulation.kueue_contract import SCENARIOS, Scenario

pytestmark = pytest.mark.usefixtures("kueue", "queue", "life")


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.__name__)
async def test_real_kueue(
    admin: ApiClient, namespace: str, kubelet: FakeKubelet, scenario: Scenario
) -> None:
    await scenario(RealKueue(admin, namespace, kubelet))
