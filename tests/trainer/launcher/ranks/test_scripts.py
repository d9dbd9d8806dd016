"""Scripts that are forked run as if Python had been started for them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ddp_trainer.launcher.ranks.scripts import Script

from tests.ports import free_port
from tests.trainer.support.pods import DEADLINE_SECONDS, contract, job
from tests.trainer.support.stub_torch import PRINTS_ITS_IMPORTER, import_path, stub_torch

PROGRAM = """
import atexit, multiprocessing, os, pickle, sys, threading, time
from __future__ import annotations

class Kept:
    pass

def answer(queue):
    queue.put((__name__, "torch" in sys.modules))

if __name__ == "__main__":
    import torch
    atexit.register(print, "at exit")
    threading.Thread(target=lambda: (threading.main_thread().join(), print("a thread"))).start()
    here = sys.modules["__main__"]
    print(sys.argv, __name__, __file__, sys.path[0], here.__file__, here.Kept is Kept)
    print(getattr(__spec__, "name", None), __package__)
    print(type(pickle.loads(pickle.dumps(Kept()))) is Kept, answer.__annotations__, sys.flags)
    spawn = multiprocessing.get_context("spawn")
    queue = spawn.Queue()
    child = spawn.Process(target=answer, args=(queue,))
    child.start()
    print(queue.get())
    child.join()
    if sys.argv[1:] == ["fail"]:
        raise ValueError("as asked")
    sys.exit("in words" if sys.argv[1:] == ["words"] else 3)
"""
PROGRAM = "from __future__ import annotations\n" + PROGRAM.replace(
    "from __future__ import annotations\n", ""
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a program, which is also a module, and a stub of torch."""
    stub_torch(tmp_path, PRINTS_ITS_IMPORTER)
    (tmp_path / "code" / "package").mkdir(parents=True)
    (tmp_path / "code" / "program.py").write_text(PROGRAM)
    (tmp_path / "code" / "package" / "program.py").write_text(PROGRAM)
    return tmp_path


def run(
    folder: Path, *command: str, ranks: int = 1, launcher: tuple[str, ...] | None = ()
) -> subprocess.CompletedProcess[str]:
    """Run a command in the code's folder, under the launcher if there is one."""
    prefix = [] if launcher is None else [sys.executable, "-m", "ddp_trainer.launch", *launcher]
    return subprocess.run(
        [*prefix, *([] if launcher is None else ["--"]), *command],
        cwd=folder / "code",
        env={
            **os.environ,
            **contract(local_world_size=ranks, port=free_port()),
            **import_path(folder),
        },
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )


@pytest.mark.parametrize(
    "words",
    [
        ["program.py"],
        ["program.py", "fail"],
        ["program.py", "words"],
        ["package/program.py"],
        ["-m", "program"],
        ["-m", "package.program", "fail"],
        ["-u", "-O", "program.py"],
    ],
    ids=" ".join,
)
def test_forked_script_runs_as_in_a_new_python(folder: Path, words: list[str]) -> None:
    alone = run(folder, sys.executable, *words, launcher=None)
    forked = run(folder, sys.executable, *words)
    printed = [line for line in forked.stdout.splitlines() if "[launcher" not in line]
    assert [line for line in printed if "imported by" not in line] == [
        line for line in alone.stdout.splitlines() if "imported by" not in line
    ]
    assert forked.returncode == alone.returncode
    runpy = '  File "<frozen runpy>"'  # Python's, on the way to a module
    expected = [line for line in alone.stderr.splitlines() if not line.startswith(runpy)]
    assert forked.stderr.splitlines() == expected
    assert "at exit" in printed
    assert "a thread" in printed
    assert "imported by nobody" in printed
    assert "imported by a rank" not in printed


def test_ranks_share_what_is_imported(folder: Path) -> None:
    (folder / "code" / "imports.py").write_text("import torch\n")
    ended = run(folder, sys.executable, "imports.py", ranks=3)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("imported by nobody") == 1
    assert "imported by a rank" not in ended.stdout


DRAWS = """
import random, tempfile, uuid
import numpy, torch
from torch.utils.data import DataLoader

class Drawn:
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return torch.rand(1).item(), numpy.random.rand(), random.random()

shuffled = DataLoader(range(10**6), batch_size=8, shuffle=True)
(worker,) = DataLoader(Drawn(), num_workers=1, batch_size=None)
print("drew", random.random(), numpy.random.rand(), numpy.random.default_rng().random(),
      torch.initial_seed(), torch.rand(1).item(), torch.nn.Linear(1, 1).weight.item(),
      torch.empty((), dtype=torch.int64).random_().item(), sum(next(iter(shuffled)).tolist()),
      torch.Generator().seed(), *worker, uuid.uuid4(), next(tempfile._get_candidate_names()))
"""


def test_forked_ranks_draw_different_random_numbers(tmp_path: Path) -> None:
    (tmp_path / "draws.py").write_text(DRAWS)
    with job(tmp_path, nodes=1, local_world_size=3) as three:
        [pod] = three.start_all("--", sys.executable, str(tmp_path / "draws.py"))
        assert pod.wait() == 0, pod.log
    lines = [line.split() for line in pod.log.splitlines()]
    forked = [words[1:] for words in lines if words[:1] == ["drew"]]
    assert [len(set(column)) for column in zip(*forked, strict=True)] == [3] * len(forked[0])


LATE = """
import ctypes, hashlib, threading

def work():
    ctypes.CDLL(None).prctl(15, b"pt_gloo_late")  # PR_SET_NAME
    began.set()
    for _ in range(4):
        hashlib.pbkdf2_hmac("sha256", b"", b"", 300_000)  # without Python's lock
    print("released", flush=True)

began = threading.Event()
threading.Thread(target=work, daemon=True).start()
began.wait()
"""


@pytest.mark.parametrize("how", [(), ("--no-preload",)])
def test_python_ends_after_gloos_threads(folder: Path, how: tuple[str, ...]) -> None:
    """A thread that takes Python's lock in Python's shutdown could abort the process."""
    (folder / "code" / "late.py").write_text(LATE)
    ended = run(folder, sys.executable, "late.py", launcher=how)
    assert ended.returncode == 0, ended.stderr
    assert "released" in ended.stdout.splitlines()


@pytest.mark.skipif(torch.__version__ < "2.8", reason="torch does not name gloo's threads")
def test_gloo_names_its_threads_as_the_launcher_expects(tmp_path: Path) -> None:
    (tmp_path / "named.py").write_text(
        "from ddp_trainer.telemetry.hook import sitecustomize\n"
        "import torch\n"
        "from torch import distributed\n"
        "alone = {'rank': 0, 'world_size': 1, 'store': distributed.HashStore()}\n"
        "distributed.init_process_group('gloo', **alone)\n"
        "distributed.all_reduce(torch.ones(1))\n"
        "print('threads', len(sitecustomize._gloo_threads()))\n"
    )
    with job(tmp_path, nodes=1) as one:
        [pod] = one.start_all("--", sys.executable, str(tmp_path / "named.py"))
        assert pod.wait() == 0, pod.log
    assert {"threads 1", "threads 2"} & set(pod.log.splitlines())  # one may not run yet


def test_process_that_forks_ranks_is_no_rank(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator sets RANK in pods of one rank; that process would do what ranks do at start."""
    (folder / "code" / "plain.py").write_text("import os\nprint('rank', os.environ['RANK'])\n")
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "0")
    ended = run(folder, sys.executable, "plain.py")
    # Two processes print, in any order.
    assert sorted(ended.stdout.splitlines()) == ["imported by nobody", "rank 0"], ended.stderr


def test_no_preload_starts_a_new_python_for_each_rank(folder: Path) -> None:
    ended = run(folder, sys.executable, "program.py", ranks=2, launcher=("--no-preload",))
    assert ended.returncode == 3
    assert ended.stdout.count("imported by a rank") == 2
    assert "imported by nobody" not in ended.stdout


@pytest.mark.parametrize("broken", ["raise OSError('no driver')", "raise ImportError('none')"])
def test_script_runs_without_a_working_torch(folder: Path, broken: str) -> None:
    (folder / "packages" / "torch" / "__init__.py").write_text(broken)
    (folder / "code" / "plain.py").write_text("print('well')\n")
    ended = run(folder, sys.executable, "plain.py")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "well\n", "")


def test_torch_does_not_import_modules_of_the_launchers_folder(folder: Path) -> None:
    (folder / "packages" / "torch" / "__init__.py").write_text("import helpers\n")
    (folder / "packages" / "helpers.py").write_text("owner = 'torch'\n")
    (folder / "code" / "helpers.py").write_text("owner = 'the launcher'\n")
    (folder / "code" / "package" / "main.py").write_text("import helpers\nprint(helpers.owner)\n")
    ended = run(folder, sys.executable, "package/main.py")
    assert (ended.returncode, ended.stdout) == (0, "torch\n")


PYTHON = sys.executable


@pytest.mark.parametrize(
    ("command", "options", "program"),
    [
        ([PYTHON, "a.py"], [], ["a.py"]),
        (["python", "a.py", "-u", "--lr", "1"], [], ["a.py", "-u", "--lr", "1"]),
        ([PYTHON, "-u", "-O", "a.py", "x"], ["-u", "-O"], ["a.py", "x"]),
        (
            [PYTHON, "-m", "torch.distributed.run", "a.py"],
            [],
            ["-m", "torch.distributed.run", "a.py"],
        ),
    ],
)
def test_a_script_of_this_python_is_forked(
    command: list[str],
    options: list[str],
    program: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "a.py").touch()
    monkeypatch.chdir(tmp_path)
    found = Script.of(command, {"PATH": os.path.dirname(PYTHON)})
    assert found == Script(options, program)


@pytest.mark.parametrize(
    "command",
    [
        ["torchrun", "a.py"],
        ["/bin/sh", "a.py"],
        [PYTHON],
        [PYTHON, "-"],
        [PYTHON, "-c", "pass"],
        [PYTHON, "-X", "dev", "a.py"],
        [PYTHON, "-i", "a.py"],
        [PYTHON, "-m"],
        [PYTHON, "-m", "-x"],
        [PYTHON, "none.py"],
        [PYTHON, "."],
        ["python", "a.py"],
        ["other/python", "a.py"],
    ],
    ids=" ".join,
)
def test_other_commands_are_not_forked(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.py").touch()
    other = tmp_path / "other" / "python"
    other.parent.mkdir()
    other.symlink_to(os.path.realpath(PYTHON))  # as a virtual environment's
    monkeypatch.chdir(tmp_path)
    assert Script.of(command, {"PATH": str(other.parent)}) is None
