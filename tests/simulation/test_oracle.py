"""What the simulation expects of an operator, where that was once wrong."""

from typing import Any

import pytest

from tests.simulation.server import shape_of
from tests.unit.job.builders import stored_job


@pytest.mark.parametrize(
    ("elastic", "is_same"), [({"elastic": {"minReplicas": 1}}, True), ({}, False)]
)
def test_pods_of_an_elastic_job_are_alike_in_a_group_of_any_size(
    elastic: dict[str, Any], *, is_same: bool
) -> None:
    shapes = {shape_of(stored_job(replicas=replicas, **elastic)) for replicas in (2, 3)}
    assert (len(shapes) == 1) is is_same
