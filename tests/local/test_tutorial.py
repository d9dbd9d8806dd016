"""The tutorial of the Python client, as its readers run it."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
async def test_tutorial_runs_to_its_end(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(ROOT / "docs" / "tutorial.py")),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "operator"), "TMPDIR": str(tmp_path)},
    )
    try:
        async with asyncio.timeout(300):
            out = (await process.communicate())[0].decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    assert process.returncode == 0, out
    assert "0 | rank 0 of 2: step 20/20" in out, out
    assert "1 | rank 1 of 2: step 20/20" in out, out
    assert "ended: Succeeded" in out
    assert "failed: ValueError: no such file: missing.csv" in out
    assert "refused: train_with_helper: it uses rate from outside" in out
