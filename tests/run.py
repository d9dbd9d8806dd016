"""Runs all rings in two lanes at a time: `python -m tests.run`, which is `make test`.

One lane waits for pods most of its time, the other computes most of its time, so that together
they take little longer than the slower one. Each lane is an ordinary pytest run; the report of one
is printed when that of the other is complete.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LANES = {
    "real pods": ["tests/cluster", "tests/e2e"],
    "processes and API server": [
        "tests/unit",
        "tests/simulation",
        "tests/local",
        "tests/trainer",
        "tests/integration",
    ],
}
"""The first one is printed last."""

ROOT = Path(__file__).resolve().parent.parent


def main(extra: list[str]) -> int:
    """Run both lanes with extra arguments for pytest; return 0 when both pass."""
    began = time.monotonic()
    (hidden, hidden_paths), (shown, shown_paths) = LANES.items()
    with tempfile.TemporaryFile("w+") as log:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", "pytest", *extra]
        with subprocess.Popen(
            [*command, *hidden_paths], cwd=ROOT, env=environment, stdout=log, stderr=log
        ) as beside:
            print(f"== {shown}: {' '.join(shown_paths)} (beside it, reported below: {hidden})")
            sys.stdout.flush()
            first = subprocess.run(
                [*command, *shown_paths], cwd=ROOT, env=environment, check=False
            ).returncode
            print(f"== {hidden}: {' '.join(hidden_paths)}")
            sys.stdout.flush()
            second = beside.wait()
        log.seek(0)
        sys.stdout.write(log.read())
    verdict = "passed" if first == second == 0 else "FAILED"
    print(f"== {verdict} in {time.monotonic() - began:.0f} s")
    return max(first, second)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
