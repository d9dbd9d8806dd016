"""Programs that command lines start: one table for `ddp run`, `ddp convert` and the rules."""

import shlex

import cel
import pytest
from ddp_operator.api.command import is_python, started
from ddp_operator.api.rules.command import starts_ranks_cel
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.unit.cpu_budget import loops

NOTHING, PYTHON = "", "Python"
TABLE: tuple[tuple[str, str], ...] = (
    ("python train.py", PYTHON),
    ("/opt/conda/bin/python train.py", PYTHON),
    ("python3.10 -u train.py", PYTHON),
    ("python3.13t train.py", PYTHON),
    ("python -W ignore -X dev -m pkg.train", PYTHON),
    ("env A=b python train.py", PYTHON),
    ("env -u X -C /src A=b /usr/bin/python3 train.py", PYTHON),
    ("uv run train.py", PYTHON),
    ("uv run --with torch --python 3.12 -m pkg.train", PYTHON),
    ("uv run --no-sync python train.py", PYTHON),
    ("poetry run python train.py", PYTHON),
    ("conda run -n base --no-capture-output python train.py", PYTHON),
    ("numactl -C 0-7 python train.py", PYTHON),
    ("timeout 3600 python train.py", PYTHON),
    ("nsys profile -o /tmp/x python train.py", PYTHON),
    ("/opt/nvidia/nvidia_entrypoint.sh python train.py", PYTHON),
    ("tini -g -- python train.py", PYTHON),
    ("bash -c 'cd /src && exec python train.py | tee log'", PYTHON),
    ("sh -lc 'set -e\npython train.py'", PYTHON),
    ("bash -c '# torchrun in earlier days\npython train.py'", PYTHON),
    ("bash -c 'pip install deepspeed && echo torchrun && python train.py'", PYTHON),
    ("python train.py --launcher torchrun --strategy deepspeed", PYTHON),
    ("torchrun train.py", "torchrun"),
    ("/usr/local/bin/torchrun --nproc_per_node 8 train.py", "torchrun"),
    ("python /usr/local/bin/torchrun train.py", "torchrun"),
    ("python -m torch.distributed.run train.py", "torch.distributed.run"),
    ("python -mtorch.distributed.run train.py", "torch.distributed.run"),
    ("/opt/conda/bin/python3.11 -u -m torch.distributed.launch t.py", "torch.distributed.launch"),
    ("$(PYTHON) -m torch.distributed.run train.py", "torch.distributed.run"),
    ("env NCCL_DEBUG=INFO torchrun train.py", "torchrun"),
    ("uv run torchrun train.py", "torchrun"),
    ("uv run -m torch.distributed.run train.py", "torch.distributed.run"),
    ("/entrypoint.sh torchrun train.py", "torchrun"),
    ("bash -c 'torchrun train.py'", "torchrun"),
    ("/bin/bash -euo pipefail -c 'cd /x; torchrun \\\n --nnodes=2 train.py'", "torchrun"),
    ("bash -c 'if true; then torchrun train.py; fi'", "torchrun"),
    ("bash -c '(torchrun train.py) 2>&1 | tee log'", "torchrun"),
    ("bash -c 'LAUNCH=\"torchrun --nnodes 2\"; $LAUNCH train.py'", "torchrun"),
    ("bash -c 'cat > run.sh <<EOF\ntorchrun train.py\nEOF\nbash run.sh'", "torchrun"),
    ("bash -c 'exec \"$@\"' -- torchrun train.py", "torchrun"),
    ('bash -c "torchrun --tee \'3 train.py"', "torchrun"),
    ("tini -- bash -lc 'exec torchrun train.py'", "torchrun"),
    ("hyperpodrun --nnodes=2 train.py", "hyperpodrun"),
    ("ft_launcher train.py", "ft_launcher"),
    ("accelerate launch train.py", "accelerate"),
    ("bash -c 'accelerate launch --num_processes 8 train.py'", "accelerate"),
    ("python -m accelerate.commands.launch train.py", "accelerate.commands.launch"),
    ("deepspeed --num_gpus 8 train.py", "deepspeed"),
    ("mpirun -np 8 python train.py", "mpirun"),
    ("horovodrun -np 8 python train.py", "horovodrun"),
    ("composer train.py", "composer"),
    ("tune run --nproc_per_node 2 recipe --config c", "tune run"),
    ("bash -c '/opt/bin/tune run --nnodes 2 recipe'", "tune run"),
    ("tune run recipe --config c", NOTHING),
    ("fabric run --num-nodes 2 train.py", "fabric run"),
    ("/opt/bin/lightning run model --devices 8 train.py", "lightning run model"),
    ("lightning download model", NOTHING),
    ("bash -c 'A=b C=d torchrun train.py'", "torchrun"),
    ("bash -c 'A=b; export C=d; torchrun train.py'", "torchrun"),
    ("tune download model", NOTHING),
    ("python -m ddp_trainer.launch -- python train.py", "ddp_trainer.launch"),
    ("", NOTHING),
    ("./train", NOTHING),
    ("bash run.sh", NOTHING),
    ("timeout 10 ./run.sh python", NOTHING),
    ("pixi run train", NOTHING),
    ("sleep infinity", NOTHING),
)


@pytest.mark.parametrize(("line", "what"), TABLE)
def test_command_line_starts_this_program(line: str, what: str) -> None:
    found = started(shlex.split(line))
    assert found.launcher or (PYTHON if found.python is not None else NOTHING) == what
    assert (found.launcher or PYTHON) == (what or PYTHON)


def test_launchers_that_read_torchruns_variables() -> None:
    by_torchrun = {what for line, what in TABLE if started(shlex.split(line)).by_torchrun}
    assert by_torchrun == {
        *("torchrun", "torch.distributed.run", "torch.distributed.launch"),
        *("hyperpodrun", "ft_launcher"),
    }


def test_python_of_any_path_and_version_is_python() -> None:
    assert all(map(is_python, ("python", "python3", "/a/python3.12", "python3.14t")))
    assert not any(map(is_python, ("python2", "pythonw", "ipython", "train.py", "")))


_SEES = cel.compile(starts_ranks_cel("w"))


def cel_sees(words: list[str]) -> bool:
    found = _SEES.execute(cel.Context({"w": words}))
    assert isinstance(found, bool)
    return found


_words = st.sampled_from(
    [
        *("python", "python3", "/a/python", "mypython", "torchrun", "/a/torchrun", "accelerate"),
        *("-m", "-u", "-c", "-lc", "-euc", "--norc", "--", "-o", "-mtorch.distributed.run", "-X"),
        *("torch.distributed.run", "torchrun x", "torchrun 'x", "x; torchrun", "train.py", "bash"),
        *("/bin/sh", "env", "uv", "run", "A=b", "./run.sh", "timeout", "10", "$@", "exec", ""),
    ]
)


@settings(max_examples=200)
@given(st.lists(_words, min_size=1, max_size=6))
def test_cel_finds_no_launcher_that_python_does_not_find(words: list[str]) -> None:
    if cel_sees(words):
        event("seen")
        assert started(words).launcher


@pytest.mark.parametrize(
    "line",
    [
        *("torchrun t.py", "/usr/local/bin/torchrun t.py", "env torchrun t.py", "deepspeed t.py"),
        *("accelerate launch t.py", "python -m torch.distributed.run t.py", "mpirun python t.py"),
        *("/opt/conda/bin/python -u -mtorch.distributed.run t.py", "bash -c 'torchrun t.py'"),
        *("python3 -m ddp_trainer.launch -- t.py", "/bin/sh -lc 'accelerate launch t.py'"),
    ],
)
def test_cel_finds_launchers_in_usual_command_lines(line: str) -> None:
    assert cel_sees(shlex.split(line))


@pytest.mark.parametrize("piece", [";", "a;", "'", "''", "\\", "$(", "`", "a='b c' ", "x", "/"])
def test_long_shell_line_is_read_in_linear_time(piece: str) -> None:
    line = piece * (240_000 // len(piece))
    assert loops(lambda: started(["sh", "-c", line])) < 2
    assert loops(lambda: started(["sh", "-c", f'{line[:300]} "$@"'] * 600)) < 2


def test_commands_within_the_first_8_kib_of_a_line_are_found() -> None:
    script = "echo\n" * 1500
    assert started(["sh", "-c", f"{script}torchrun t.py\n{script}"]).launcher == "torchrun"
    assert not started(["sh", "-c", f"{script}{script}torchrun t.py"]).launcher


def test_command_that_is_cut_off_is_not_read() -> None:
    line = "torchrun".rjust(8_192) + "-wrapper"
    assert started(["sh", "-c", line[:8_192]]).launcher == "torchrun"
    assert not started(["sh", "-c", line]).launcher


def test_arguments_of_nested_shells_are_followed_to_a_limit() -> None:
    nested = ["sh", "-c", 'exec "$@"', "-"]
    assert started([*nested * 5, "torchrun", "t.py"]).launcher == "torchrun"
    assert not started([*nested * 500, "torchrun", "t.py"]).launcher
