"""The benchmark between real processes: its figures, the slow node and exit codes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ddp_operator.api.job import DDPJob
from ddp_trainer.bench import __main__ as bench
from ddp_trainer.bench.links import Member, accuse, neighbours, partners
from ddp_trainer.bench.options import BenchOptions
from ddp_trainer.exit_codes import ConfigurationError, ExitCode
from ddp_trainer.launcher.options import LaunchOptions

from tests.trainer.support.pods import contract, job

PREFLIGHT = Path(__file__).parents[3] / "manifests" / "examples" / "preflight.yaml"
BENCH = ["--", sys.executable, "-m", "ddp_trainer.bench", "--iterations=3", "--warmup=1"]


def rows(log: str) -> list[list[str]]:
    """Return the words of each line of the table."""
    return [line.split() for line in log.splitlines() if line.startswith("  ")]


def test_figures_of_four_ranks_on_two_nodes(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    flags = ["--min-bytes=1K", "--max-bytes=64K", "--factor=64", "--ring", f"--json={results}"]
    with job(tmp_path, nodes=2, local_world_size=2) as started:
        first, second = started.start_all(*BENCH, *flags)
        assert first.wait() == 0, first.log
        assert second.wait() == 0, second.log
    found = json.loads(results.read_text())
    assert found["exit_code"] == 0
    assert found["unsupported"] == []
    factors = {
        "all_reduce": 2 * 3 / 4,
        "all_gather": 3 / 4,
        "broadcast": 1,
        "reduce_scatter": 3 / 4,
        "send_recv": 1,
    }
    measured = found["measurements"]
    assert [(one["operation"], one["size_bytes"]) for one in measured] == [
        (operation, size) for operation in factors for size in (1024, 65536)
    ]
    for one in measured:
        parts = 4 if one["operation"] in ("all_gather", "reduce_scatter") else 1
        assert one["count"] * parts * 4 == one["size_bytes"]
        assert one["time_us"] > 0
        assert one["algbw"] == pytest.approx(one["size_bytes"] / one["time_us"] / 1e3)
        assert one["busbw"] == pytest.approx(one["algbw"] * factors[one["operation"]])
        assert one["wrong"] == 0
    assert [(row[0], row[1], row[-1]) for row in rows(first.log)] == [
        (one["operation"], str(one["size_bytes"]), "0") for one in measured
    ]
    assert rows(second.log) == []
    # Ranks talk to the rank of the same index on the other node.
    assert [member["partners"] for member in found["members"]] == [[2], [3], [0], [1]]
    assert all(member["link_gbps"] > 0 for member in found["members"])
    ring = [(step["rank"], step["node_rank"], step["to"]) for step in found["ring"]]
    assert ring == [(0, 0, 1), (1, 0, 2), (2, 1, 3), (3, 1, 0)]
    assert all(step["gbps"] > 0 < step["latency_us"] for step in found["ring"])
    assert re.search(r"# rank 3 on node \S+ \(node rank 1\) to rank 0: .* GB/s each way", first.log)


SLOW_RANK_2 = """
import os, runpy, time
from ddp_trainer.bench import measure

right = measure.exchange


def slow(*arguments):
    time.sleep(0.2)
    right(*arguments)


if os.environ["RANK"] == "2":
    measure.exchange = slow
runpy.run_module("ddp_trainer.bench", run_name="__main__", alter_sys=True)
"""


def test_a_slow_node_is_named_and_has_its_own_exit_code(tmp_path: Path) -> None:
    program = tmp_path / "slow.py"
    program.write_text(SLOW_RANK_2)
    flags = ["--operations=all_reduce", "--max-bytes=1K", "--iterations=2", "--min-busbw=1e6"]
    with job(tmp_path, nodes=3) as started:
        for node in range(3):
            started.extra_environment = {"NODE_NAME": f"node-{node}"}
            started.start(node, "--", sys.executable, str(program), *flags)
        for pod in started.pods:
            assert pod.wait() == ExitCode.SLOW_NETWORK, pod.log
            assert pod.message["exitCode"] == 69
            assert pod.message["error"].startswith("TOO SLOW: slow: rank 2 on node node-2 (host ")
            # A busy machine may be so slow that it takes an exponent to say how slow.
            measured = r"with --min-busbw 1e\+06: all_reduce (\d\.\S+)$"
            found = re.search(measured, pod.message["error"])
            assert found is not None, pod.message["error"]
            assert 0 < float(found[1]) < 1


BROKEN = """
import os, runpy
from torch import distributed as dist
from ddp_trainer.bench import operations

right = dist.broadcast


def wrong(tensor, *args, **kwargs):
    work = right(tensor, *args, **kwargs)
    if os.environ["RANK"] == "1" and tensor.dtype == operations.DTYPE:
        tensor[:5] += 1
    return work


def refuse(*args):
    raise RuntimeError("Backend gloo does not support _reduce_scatter_base")


dist.broadcast = wrong
operations._reduce_scatter_single = refuse
runpy.run_module("ddp_trainer.bench", run_name="__main__", alter_sys=True)
"""


def test_wrong_results_and_unsupported_operations_are_reported(tmp_path: Path) -> None:
    program = tmp_path / "broken.py"
    program.write_text(BROKEN)
    results = tmp_path / "results.json"
    flags = ["--operations=broadcast,reduce_scatter,send_recv", "--max-bytes=1K"]
    with job(tmp_path, nodes=2) as started:
        pods = started.start_all(
            "--", sys.executable, str(program), *flags, f"--json={results}", "--min-busbw=1e6"
        )
        for pod in pods:
            assert pod.wait() == ExitCode.FAILURE, pod.log
            assert "WRONG RESULTS: broadcast of 1024 bytes gave 5 wrong" in pod.message["error"]
    broadcast, refused, send_recv = rows(pods[0].log)
    assert (broadcast[0], broadcast[-1]) == ("broadcast", "5")
    assert " ".join(refused) == (
        "reduce_scatter not supported by this backend: "
        "Backend gloo does not support _reduce_scatter_base"
    )
    assert (send_recv[0], send_recv[-1]) == ("send_recv", "0")
    found = json.loads(results.read_text())
    assert [one["operation"] for one in found["unsupported"]] == ["reduce_scatter"]
    assert found["exit_code"] == 1


def test_lost_peer_has_another_exit_code_than_a_slow_network(tmp_path: Path) -> None:
    with job(tmp_path, nodes=2) as started:
        stays, goes = started.start_all(*BENCH, "--iterations=1000000", "--operations=all_reduce")
        stays.wait_for_log("# operation")
        goes.kill()
        assert stays.wait() == ExitCode.LOST_PEER, stays.log


@pytest.mark.parametrize(
    ("flags", "environment", "message"),
    [
        (
            (),
            {"WORLD_SIZE": "1", "GROUP_WORLD_SIZE": "1"},
            "WORLD_SIZE is 1: start two or more ranks",
        ),
        ((), {"WORLD_SIZE": "3", "DDP_POD_SIZES": "1,2"}, "needs pods of equal size"),
        ((), {"RANK": ""}, "RANK is not set"),
        (("--json=/nowhere/at/all.json",), {}, "--json /nowhere/at/all.json: No such file"),
    ],
)
def test_impossible_settings_are_refused_before_any_wait(
    flags: tuple[str, ...],
    environment: dict[str, str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(bench, "log_to_stdout", lambda _: None)
    variables = {**contract(nodes=2), "RANK": "0", "LOCAL_RANK": "0", **environment}
    assert bench.main(flags, variables) == ExitCode.CONFIGURATION
    assert message in caplog.text


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--operations=all_reduce,alltoall", "'alltoall' is unknown, choose from all_reduce,"),
        ("--max-bytes=64MB", "--max-bytes is '64MB': set it to 4 or more bytes"),
        ("--min-bytes=3", "--min-bytes is '3'"),
        ("--max-bytes=8", "--max-bytes 8 is less than --min-bytes 1024"),
        ("--factor=1", "--factor is 1: set it to 2 or more"),
        ("--min-busbw=0", "--min-busbw is 0.0: set it to more than 0"),
        ("--min-bandwidth=1", "--help lists the flags"),
    ],
)
def test_wrong_flags_are_refused(flag: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        BenchOptions.parse([flag])
    assert message in str(error.value)


def test_sizes_grow_by_the_factor() -> None:
    sizes = BenchOptions.parse(["--min-bytes=1K", "--max-bytes=1M", "--factor=8"]).sizes
    assert sizes == (2**10, 2**13, 2**16, 2**19)


def test_the_preflight_job_runs_the_benchmark() -> None:
    manifest: dict[str, Any] = yaml.safe_load(PREFLIGHT.read_text())
    metadata = {"namespace": "default", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    spec = DDPJob.parse({**manifest, "metadata": {**manifest["metadata"], **metadata}}).spec
    (container,) = spec.template["spec"]["containers"]
    plan = LaunchOptions.parse(container["args"])
    assert plan.is_script
    assert list(plan.command[:3]) == ["python", "-m", "ddp_trainer.bench"]
    assert BenchOptions.parse(plan.command[3:]).min_busbw is not None
    assert spec.restart.max_restarts == 0
    assert spec.replicas >= 3, "with two, the slow node is unknown"


@pytest.mark.parametrize(("nodes", "local_world_size"), [(1, 2), (2, 1), (4, 3), (5, 1), (9, 2)])
def test_each_rank_meets_its_partners_in_the_same_round(nodes: int, local_world_size: int) -> None:
    world_size = nodes * local_world_size
    rounds = [
        partners(rank, nodes=nodes, local_world_size=local_world_size) for rank in range(world_size)
    ]
    for rank, opponents in enumerate(rounds):
        met = [other for other in opponents if other is not None]
        assert met
        assert len(set(met)) == len(met)
        for turn, other in enumerate(opponents):
            if other is not None:
                assert other != rank
                assert rounds[other][turn] == rank
                assert nodes == 1 or other // local_world_size != rank // local_world_size
                assert other % local_world_size == rank % local_world_size or nodes == 1


@pytest.mark.parametrize("ranks", [2, 3, 4, 11])
def test_each_rank_meets_its_two_neighbours(ranks: int) -> None:
    rounds = [neighbours(rank, ranks) for rank in range(ranks)]
    for rank, met in enumerate(rounds):
        assert set(met) - {None} == {(rank + 1) % ranks, (rank - 1) % ranks}
        for turn, other in enumerate(met):
            assert other is None or rounds[other][turn] == rank


def member(rank: int, gbps: float, *partners: int) -> Member:
    return Member(
        rank=rank, node=f"n{rank}", host=f"job-0-{rank}", partners=partners, link_gbps=gbps
    )


def test_slow_rank_is_named() -> None:
    assert accuse([member(0, 10, 1, 2), member(1, 2, 0, 2), member(2, 10, 0, 1)]) == (
        "slow: rank 1 on node n1 (host job-0-1); with its best partner "
        "2 GB/s each way, the median rank 10 GB/s"
    )
    assert accuse([member(0, 10, 1, 2), member(1, 9, 0, 2), member(2, 10, 0, 1)]).startswith(
        "no rank stands out: rank 1 on node n1"
    )
    assert accuse([member(0, 2, 1), member(1, 2, 0)]).endswith(
        "to find out which end is slow, add a third node or rank"
    )
