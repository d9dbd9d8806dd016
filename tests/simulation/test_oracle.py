"""The simulation itself, where it was once wrong."""

from typing import Any

import pytest

from tests.good_manifests import container, template
from tests.simulation.kubelet import trainer_exit
from tests.simulation.server import shape_of
from tests.simulation.simulation import Simulation
from tests.unit.job.builders import stored_job


@pytest.mark.parametrize(
    ("elastic", "is_same"), [({"elastic": {"minReplicas": 1}}, True), ({}, False)]
)
def test_pods_of_an_elastic_job_are_alike_in_a_group_of_any_size(
    elastic: dict[str, Any], *, is_same: bool
) -> None:
    shapes = {shape_of(stored_job(replicas=replicas, **elastic)) for replicas in (2, 3)}
    assert (len(shapes) == 1) is is_same


def test_a_launcher_that_nobody_answers_ends_with_the_words_of_its_processes() -> None:
    simulation = Simulation()
    spec: dict[str, Any] = {"restart": {"scope": "InPlace"}, "template": template(container())}
    simulation.server.create_job(stored_job(replicas=1, **spec)["spec"])
    simulation.advance(1.0)
    simulation.kill_operator()
    for _ in range(2):
        [pod] = simulation.pods()
        simulation.bring_further(pod)
    [pod] = simulation.pods()
    assert simulation.launchers.fail(pod, 1, "uncorrectable ECC error")
    for seconds, ended in ((59, False), (2, True)):
        simulation.clock.seconds += seconds
        simulation.end_in_impatience(pod)
        [pod] = simulation.pods(live=False)
        assert bool(trainer_exit(pod)) is ended
    assert (trainer_exit(pod) or {})["message"] == "uncorrectable ECC error"
