import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from ddp_operator.cli.__main__ import program

from tests.unit.views.traces.recorder import Call, Ranks

HEADLINE = "rank 2 did not enter all_reduce 3 of the default group; 3 ranks wait since 14:13:20"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    ranks = Ranks.same({"0": (0, 1, 2, 3)}, [Call("0")] * 3)
    ranks.hosts[2] = 2
    ranks.run()
    for rank in ranks.programs:
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(ranks.dump(rank))
    return tmp_path


def test_the_rank_is_named_without_a_cluster(directory: Path) -> None:
    result = CliRunner().invoke(program, ["why", "--traces", str(directory)])
    assert result.exit_code == 0, result.output
    assert " ".join(result.stdout.split()).startswith(f"{HEADLINE} evidence - 3 of 4 ranks")


def test_json_output(directory: Path) -> None:
    (directory / "nccl_trace_rank_3").write_bytes(b"\x80")
    result = CliRunner().invoke(program, ["why", "--traces", str(directory), "-o", "json"])
    found = json.loads(result.stdout)
    assert found["headline"] == HEADLINE.replace("3 ranks", "2 ranks")
    assert (found["ranks"], found["no_dump"]) == ([2], [3])
    assert found["unreadable"] == {"nccl_trace_rank_3": "it is cut off"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give NAME, or --traces DIR"),
        (["digits", "--traces", "."], "give NAME or --traces, not both"),
        (["--hang", "--traces", "."], "give NAME or --traces, not both"),
        (["--hang"], "give NAME, or --traces DIR"),
        (["--traces", "/nowhere"], "does not exist"),
    ],
)
def test_invalid_usage(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(program, ["why", *arguments])
    assert result.exit_code == 2
    assert said in result.output


def test_a_directory_without_dumps_gets_a_remedy(tmp_path: Path) -> None:
    result = CliRunner().invoke(program, ["why", "--traces", str(tmp_path)])
    assert result.exit_code == 1
    assert f"{tmp_path}: no file name ends with a rank; give a directory" in result.output
