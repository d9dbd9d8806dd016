"""Effects of DDP's options, on two ranks of one group."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
import torch

from tests.trainer.support.pods import job

Results = list[dict[str, Any]]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Return the results of each rank; one group runs all checks."""
    folder = tmp_path_factory.mktemp("options")
    command = ("--", sys.executable, "-m", "tests.trainer.settings.option_checks", str(folder))
    with job(folder, nodes=1, local_world_size=2) as two:
        pod = two.start(0, *command)
        assert pod.wait() == 0, pod.log
    return [json.loads((folder / f"rank-{rank}").read_text()) for rank in range(2)]


def close(one: list[float], other: list[float], *, tolerance: float = 1e-6) -> bool:
    return torch.allclose(torch.tensor(one), torch.tensor(other), rtol=0, atol=tolerance)


def test_accumulated_batches_equal_a_large_one(seen: Results) -> None:
    for rank in seen:
        result = rank["accumulation"]
        assert close(result["whole"], result["parts"])
        assert result["buckets"] == 3, "one exchange a step, not one a batch"
        assert close(result["uneven"], result["plain"], tolerance=1e-5)


def test_bf16_computes_in_bf16_and_keeps_parameters_in_fp32(seen: Results) -> None:
    for rank in seen:
        assert set(rank["bf16"]["kinds"]) == {"torch.bfloat16"}
        assert len(rank["bf16"]["kinds"]) == 3, "two steps and an evaluation"
        assert rank["bf16"]["parameters"] == "torch.float32"


def test_logical_shards_go_with_the_other_options(seen: Results) -> None:
    for number, rank in enumerate(seen):
        result = rank["logical_shards"]
        assert close(*result["plain"])
        assert result["pieces"][0] == result["pieces"][1], "whatever they travel in"
        assert close(*result["accumulated"])
        assert result["static"][0] == result["static"][1] == result["pieces"][0]
        assert result["on rank 1"] == seen[0]["unused_parameters"]["on rank 1"]
        assert f"the loss of rank {number} does not depend on extra.weight" in result["never"]


def test_two_ranks_share_the_steps_of_three_evenly(seen: Results) -> None:
    for rank in seen:
        result, shards = rank["even_shares"], rank["logical_shards"]
        for name, gradients in shards["gradients"].items():
            assert close(result["gradients"][name], gradients), name
        assert result["as many as ranks"] == shards["plain"][0]
        assert close(result["none"], result["fp16"], tolerance=1e-3)
        assert close(result["none"], result["bf16"], tolerance=1e-2)
        assert result["none"] != result["fp16"]
        assert result["fp16"] != result["bf16"]


def test_unused_parameters_are_named_unless_looked_for(seen: Results) -> None:
    for number, rank in enumerate(seen):
        result = rank["unused_parameters"]
        message = (
            f"the loss of rank {number} does not depend on extra.weight, extra.bias: set "
            "--find-unused-parameters (find_unused_parameters=True in your own script), or "
            "freeze them, or remove them from the model"
        )
        assert result["never"] == result["never, accumulated"] == message
        assert result["never, found"] == result["never, static"] == ""


def test_parameters_that_one_rank_uses_are_averaged_over_all(seen: Results) -> None:
    first, second = (rank["unused_parameters"]["on rank 1"] for rank in seen)
    assert first == second
    assert any(first)


def test_a_static_graph_accumulates(seen: Results) -> None:
    for rank in seen:
        result = rank["static_graph_accumulates"]
        assert close(result["static"], result["plain"])


def test_small_buckets_are_many(seen: Results) -> None:
    for rank in seen:
        assert rank["buckets"]["25"] == 1
        assert rank["buckets"]["0.001"] > 1


def test_gradients_live_in_their_buckets_unless_told_otherwise(seen: Results) -> None:
    for rank in seen:
        assert rank["bucket_views"] == {
            "--gradient-as-bucket-view": 1,
            "--no-gradient-as-bucket-view": 4,
        }


def test_buffers_are_equal_before_each_step_or_at_least_before_saves(seen: Results) -> None:
    assert seen[0]["buffers"] == {
        "--broadcast-buffers": [5.0, 5.0, 5.0],
        "--no-broadcast-buffers": [5.0, 5.0, 5.0],
    }
    # After each step and at the end: training ends with an evaluation, and with a save.
    assert seen[1]["buffers"] == {
        "--broadcast-buffers": [5.0, 5.0, 5.0],
        "--no-broadcast-buffers": [6.0, 6.0, 5.0],
    }


@pytest.mark.parametrize(("kind", "tolerance"), [("fp16", 1e-3), ("bf16", 8e-3)])
def test_compressed_gradients_are_nearly_right(kind: str, tolerance: float, seen: Results) -> None:
    assert seen[0]["compression"] == seen[1]["compression"]
    exact, compressed = seen[0]["compression"]["none"], seen[0]["compression"][kind]
    assert compressed != exact
    assert close(compressed, exact, tolerance=tolerance)


def test_a_compiled_model_computes_the_same(seen: Results) -> None:
    for rank in seen:
        before, after = rank["compiled"]["frames"]
        assert after > before
        assert rank["compiled"]["compiled"] == rank["compiled"]["plain"]
        assert rank["compiled"]["names"]
