"""Ranks of each pod, in jobs of equal and of unequal pods."""

from typing import Any

import pytest
from ddp_operator.api import ranks
from ddp_operator.job.pods.environment import environment
from ddp_operator.job.pods.state import Identity
from hypothesis import given
from hypothesis import strategies as st

from tests.good_manifests import container, gpus, template
from tests.unit.job.builders import fresh_job


def sizes_of(sizes: list[int], plain: int = 2) -> dict[str, Any]:
    """Return a spec for pods with these numbers of processes."""
    overrides = [
        {"indexes": [str(i) for i, own in enumerate(sizes) if own == size], "nprocPerNode": size}
        for size in sorted(set(sizes) - {plain})
    ]
    more = {"overrides": overrides} if overrides else {}
    return {"replicas": len(sizes), "nprocPerNode": plain, **more}


@given(st.lists(st.integers(1, 4), min_size=1, max_size=12))
def test_ranks_count_across_pods(sizes: list[int]) -> None:
    job = fresh_job(**sizes_of(sizes))
    owners = [index for index, size in enumerate(sizes) for _ in range(size)]
    assert ranks.world_size(job.spec) == len(owners)
    for index, size in enumerate(sizes):
        assert [owners[rank] for rank in ranks.ranks(job.spec, index)] == [index] * size
    assert [ranks.pod_of(job.spec, rank) for rank in range(len(owners))] == owners
    assert ranks.pod_of(job.spec, len(owners)) == len(sizes) - 1, "of no pod: the last"
    text = ranks.pod_sizes(job.spec)
    assert bool(text) is (len(set(sizes)) > 1)
    runs = (run.partition("x") for run in text.split(",") if run)
    read = [int(size) for size, _, pods in runs for _ in range(int(pods or 1))]
    assert read == (sizes if text else [])


def test_environment_of_unequal_pods() -> None:
    job = fresh_job(**sizes_of([4, 1, 2, 2]))
    names = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "NODE_RANK", "RANK")
    variables = [environment(job, Identity(index, 0), token="") for index in range(4)]
    assert [tuple(one.get(name) for name in names) for one in variables] == [
        ("9", "4", "4", "0", None),
        ("9", "1", "4", "1", "4"),
        ("9", "2", "4", "2", None),
        ("9", "2", "4", "3", None),
    ]
    assert {one["DDP_POD_SIZES"] for one in variables} == {"4,1,2x2"}
    assert [one["PET_NPROC_PER_NODE"] for one in variables] == ["4", "1", "2", "2"]


@pytest.mark.parametrize(
    ("override", "backend"),
    [
        ({"nprocPerNode": 1}, "nccl"),
        ({"template": template(container())}, "gloo"),
        ({"template": template(container(resources=gpus(gpu=1)))}, "nccl"),
    ],
)
def test_all_pods_have_one_backend(override: dict[str, Any], backend: str) -> None:
    job = fresh_job(
        template=template(container(resources=gpus(gpu=2))),
        overrides=[{"indexes": ["1"], **override}],
    )
    backends = {environment(job, Identity(index, 0), token="")["DDP_BACKEND"] for index in range(2)}
    assert backends == {backend}
