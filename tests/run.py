"""Runs all rings in lanes beside each other: `python -m tests.run`, which is `make test`.

One lane waits for pods most of its time, one starts processes, one computes and talks to an API
server, so that together they take little longer than the slowest. Each lane is an ordinary pytest
run; the report of the first is printed as it comes, those of the others when they are complete.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LANES = {
    "decisions and API server": ["tests/unit", "tests/simulation", "tests/integration"],
    "processes": ["tests/local", "tests/trainer"],
    "real pods": ["tests/cluster", "tests/e2e"],
}

ROOT = Path(__file__).resolve().parent.parent


def main(extra: list[str]) -> int:
    """Run all lanes with extra arguments for pytest; return 0 when all pass."""
    began = time.monotonic()
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "pytest", *extra]
    first, *others = LANES
    with tempfile.TemporaryDirectory(prefix="ddp-tests-") as folder:
        logs = {name: Path(folder, f"{number}.log") for number, name in enumerate(others)}
        beside = {}
        for name, log in logs.items():
            with log.open("w") as output:
                beside[name] = subprocess.Popen(
                    [*command, *LANES[name]],
                    cwd=ROOT,
                    env=environment,
                    stdout=output,
                    stderr=output,
                )
        print(f"== {first}: {' '.join(LANES[first])} (beside it, below: {', '.join(others)})")
        sys.stdout.flush()
        worst = subprocess.run(
            [*command, *LANES[first]], cwd=ROOT, env=environment, check=False
        ).returncode
        for name, process in beside.items():
            print(f"== {name}: {' '.join(LANES[name])}")
            sys.stdout.flush()
            worst = max(worst, process.wait())
            sys.stdout.write(logs[name].read_text())
    print(f"== {'passed' if worst == 0 else 'FAILED'} in {time.monotonic() - began:.0f} s")
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
