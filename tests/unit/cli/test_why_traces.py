import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from ddp_client.cli.__main__ import program
from ddp_client.cli.commands import why
from ddp_trainer.flight_recorder.directory import reduce_directory

from tests.unit.hang.traces.recorder import Call, Ranks

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


def test_output_of_the_reader_in_a_pod_is_read(directory: Path, tmp_path: Path) -> None:
    (reduced := tmp_path / "reduced.json").write_text(json.dumps(reduce_directory(directory)))
    result = CliRunner().invoke(program, ["why", "--traces", str(reduced)])
    assert result.exit_code == 0, result.output
    assert " ".join(result.stdout.split()).startswith(f"{HEADLINE} evidence - 3 of 4 ranks")
    reduced.write_text("[" * 100_000)
    result = CliRunner().invoke(program, ["why", "--traces", str(reduced)])
    assert result.exit_code == 1
    said = "it is nested too deeply; give the output of python -m ddp_trainer.flight_recorder"
    assert said in " ".join(result.output.split())


def test_without_ddp_trainer_a_remedy_is_given(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(why, "_READER", "ddp_trainer_is_missing")
    result = CliRunner().invoke(program, ["why", "--traces", str(directory)])
    assert result.exit_code == 1
    assert "pip install --no-deps ddp-trainer" in " ".join(result.output.split())


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
        ([], "give NAME, or --traces PATH"),
        (["digits", "--traces", "."], "give NAME or --traces, not both"),
        (["--hang", "--traces", "."], "give NAME or --traces, not both"),
        (["--hang"], "give NAME, or --traces PATH"),
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
