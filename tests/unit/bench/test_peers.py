"""Tables of the benchmark of the operator and its peers."""

from tests.bench import benchmark
from tests.bench.reports import peers as report
from tests.bench.reports.peers import Cost, Rest, Results, Round
from tests.bench.server.creation import RawRun
from tests.bench.server.metrics import Requests


def _cost(seconds: float, writes: int, *, resource: str = "pods") -> Cost:
    requests = Requests({("POST", resource): writes, ("LIST", "pods"): 7, ("POST", "events"): 9})
    return Cost(seconds=seconds, cpu_seconds=1.0, kube_cpu_seconds=0.5, requests=requests)


def _results() -> Results:
    def round_of(seconds: float) -> Round:
        costs = {step: _cost(seconds, 1600, resource="jobs") for step in report.PODS}
        return Round(RawRun(pods=800, seconds=2.0, body_bytes=1), {"A": costs, "B": costs})

    rest = Rest(memory_before_mb=50.4, memory_mb=90.6, cpu_percent=0.25, load=_cost(9.0, 1))
    return Results(
        kubernetes="v1.36.3",
        versions={"A": "0.1", "B": "2.0"},
        load_average=(1.0, 2.0, 3.0),
        rounds=[round_of(4.0), round_of(8.0)],
        rest={"A": rest, "B": rest},
    )


def test_table_is_markdown_for_the_page() -> None:
    lines = report.text(_results(), ["a setting", "another"]).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert table == lines[-len(table) :]
    assert {line.count("|") for line in table} == {5}
    assert table[:2] == ["|  | A 0.1 | B 2.0 | bare client |", "|---|---|---|---|"]
    rows = {cells[1].strip(): cells[2].strip() for line in table for cells in [line.split("|")]}
    assert rows["100 jobs of 8 pods: pods a second"] == "150 (100-200)"
    assert rows["as a part of the bare client's"] == "0.38 (0.25-0.50)"
    assert rows["API writes a job"] == "16.0 (16.0-16.0)"
    assert rows["its 500 pods become ready: CPU a pod, ms"] == "2.0 + 1.0"
    assert rows["one fails, all 500 restart: seconds to the last new pod"] == "6.0 (4.0-8.0)"
    assert rows["1,000 jobs of 2 running pods, at rest: memory, MB"] == "91 (50 before)"


def test_writes_by_verb_and_resource_of_one_job() -> None:
    lines = report.text(_results(), []).splitlines()
    of_many, of_restart = (line for line in lines if line.startswith("  POST"))
    assert of_many.split() == ["POST", "jobs", "16.00", "16.00"]
    assert of_restart.split() == ["POST", "jobs", "1600.00", "1600.00"]


def test_benchmark_is_found_by_the_end_of_its_name() -> None:
    assert benchmark.find("peers") == benchmark.find("operator-peers") == ["operator-peers"]
    assert benchmark.find("peer") == []


def test_other_lines_fit_a_terminal() -> None:
    lines = report.text(_results(), ["a setting"]).splitlines()
    assert max(len(line) for line in lines if not line.startswith("|")) <= 80
