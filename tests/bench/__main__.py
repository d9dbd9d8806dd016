"""`python -m tests.bench [NAME...]`: measures the operator and the trainer; all of it by default.

A measurement, not a test: the figures decide nothing about the exit status, but a benchmark that
did not measure what it should does.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.bench import benchmark
from tests.bench.benchmark import BenchmarkError, Settings
from tests.cluster import ClusterUnavailableError


def main() -> int:
    """Run benchmarks; returns the exit status."""
    known = benchmark.names()
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="default: 3")
    parser.add_argument("--state-mb", type=int, metavar="N", help="for trainer-memory-loss")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there too")
    asked = parser.parse_args()
    if asked.repeat < 1:
        parser.error("--repeat: at least 1")
    if asked.state_mb is not None and asked.state_mb < 2:
        parser.error("--state-mb: at least 2")
    if unknown := sorted(word for word in set(asked.names) if not benchmark.find(word)):
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(known)}")
    machine = {"cores": os.cpu_count() or 1, "python": platform.python_version()}
    print(f"machine      {machine['cores']} cores, Python {machine['python']}")
    found: dict[str, Any] = {**machine}
    failed = []
    for name in [name for word in asked.names for name in benchmark.find(word)] or known:
        print(f"\n== {name}", flush=True)
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="ddp-bench-") as scratch:
            try:
                outcome = benchmark.measure(
                    name, Settings(asked.repeat, Path(scratch), asked.state_mb)
                )
            except (ClusterUnavailableError, BenchmarkError) as error:
                print(f"no benchmark {name}: {error}", file=sys.stderr)
                failed.append(name)
                continue
        print(outcome.text)
        print(f"({name} took {time.monotonic() - began:.0f} s)", flush=True)
        found[name] = benchmark.as_json(outcome.data)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
