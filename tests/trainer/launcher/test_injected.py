"""The launcher in an image without it: the launcher's folder, and any Python."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.ports import free_port
from tests.trainer.support.pods import contract

REPOSITORY = Path(__file__).resolve().parents[3]
ENTRY = REPOSITORY / "trainer-image/inject/__main__.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The launcher's folder as in the operator's image, read-only."""
    made = tmp_path_factory.mktemp("pod") / "ddp-launcher"
    shutil.copytree(ENTRY.parent, made)
    for package in ("trainer-image/ddp_trainer", "protocol/ddp_protocol"):
        source = REPOSITORY / package
        shutil.copytree(source, made / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    return made


BARE = ("-I", "-S", "-B")
"""Python with only the standard library (-I: no modules of ours, -S: no packages)."""
WITH_PACKAGES = ("-I", "-B")


def launch(
    folder: Path, *command: str, flags: tuple[str, ...] = BARE, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command by the launcher in a folder."""
    environment = {
        "PATH": os.environ["PATH"],
        **contract(local_world_size=2),
        "DDP_TERMINATION_LOG": str(folder.parent / "termination-log"),
        **variables,
    }
    return subprocess.run(
        [sys.executable, *flags, str(folder), *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_ranks_start_without_any_package(folder: Path) -> None:
    script = folder.parent / "script.py"
    script.write_text(
        "import os, sys\n"
        "print('rank', os.environ['RANK'], os.environ['LOCAL_RANK'], os.environ['WORLD_SIZE'])\n"
        "sys.exit(int(sys.argv[1]) * int(os.environ['RANK']))\n"
    )
    before = sorted(folder.rglob("*"))
    python = ("/bin/sh", "-c", f'exec {sys.executable} -I -S {script} "$0"')
    ran = launch(folder, "--", *python, "0")
    assert ran.returncode == 0, ran.stderr
    lines = [line for line in ran.stdout.splitlines() if line.startswith("rank ")]
    assert sorted(lines) == ["rank 0 0 2", "rank 1 1 2"]
    assert launch(folder, "--", *python, "7").returncode == 7
    message = json.loads((folder.parent / "termination-log").read_text())
    assert (message["exitCode"], message["rank"]) == (7, 1)
    assert sorted(folder.rglob("*")) == before


def test_ranks_find_the_launchers_modules(folder: Path) -> None:
    """The forkserver of scripts is one of them."""
    show = "import ddp_trainer, os; print(ddp_trainer.__file__, os.environ['PYTHONPATH'])"
    ran = launch(folder, "--", sys.executable, "-c", show, PYTHONPATH="/users")
    assert ran.returncode == 0, ran.stderr
    hook = folder / "ddp_trainer/telemetry/hook"  # a sitecustomize alone
    path = os.pathsep.join([str(hook), str(folder), "/users"])
    lines = f"{folder}/ddp_trainer/__init__.py {path}"
    assert ran.stdout.splitlines()[-2:] == [lines, lines]


def test_ranks_use_the_torch_of_their_image(folder: Path) -> None:
    """Works with any torch: `make test-torch` runs this with other versions."""
    script = folder.parent / "sum.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "total = torch.tensor([dist.get_rank() + 1])\n"
        "dist.all_reduce(total)\n"
        "print('torch', torch.__version__, int(total))\n"
        "dist.destroy_process_group()\n"
    )
    port = str(free_port())
    python = (sys.executable, str(script))
    ran = launch(folder, "--", *python, flags=WITH_PACKAGES, MASTER_PORT=port)
    assert ran.returncode == 0, ran.stderr
    lines = [line for line in ran.stdout.splitlines() if line.startswith("torch ")]
    assert lines == [f"torch {torch.__version__} 3"] * 2


def test_older_python_gets_an_error_with_the_needed_version() -> None:
    older = f"import runpy, sys; sys.version_info = (3, 9, 2); runpy.run_path({str(ENTRY)!r})"
    ran = subprocess.run(
        [sys.executable, "-c", older], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 64
    assert ran.stderr.startswith(
        "spec.launcher: inject needs Python 3.11 or newer in the image, and its "
    )
    assert "is 3.9;" in ran.stderr


def test_older_python_can_parse_the_entry() -> None:
    text = ENTRY.read_text()
    tree = ast.parse(text, feature_version=(3, 4))
    text.encode("ascii")  # Python 2 needs a declaration for other encodings
    for node in ast.walk(tree):
        assert not isinstance(node, ast.JoinedStr | ast.AnnAssign), ast.unparse(node)
        assert not getattr(node, "returns", None)
        if isinstance(node, ast.ImportFrom | ast.Import):
            assert {name.name for name in node.names} <= {"os", "runpy", "sys"}
