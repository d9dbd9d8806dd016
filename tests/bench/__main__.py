"""`python -m tests.bench`: how fast the operator creates pods, and what that costs the API server.

A measurement, not a test: the figures decide nothing about the exit status, but pods that are wrong
in number do.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

from tests.bench import report, scenarios
from tests.bench.client import BareClient, BenchmarkError
from tests.bench.report import Repetition, Results
from tests.bench.scenarios import JobsRun, Shape
from tests.cluster import ClusterUnavailableError, ControlPlane, control_plane

RAW_PODS = 800
SHAPES = (Shape(jobs=100, replicas=8), Shape(jobs=1, replicas=500))


def main() -> int:
    """Run the benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="default: 3")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there too")
    asked = parser.parse_args()
    if asked.repeat < 1:
        parser.error("--repeat: at least 1")
    try:
        # The controllers write too, as in any cluster: Endpoints and EndpointSlices of a Service.
        # A scheduler would write as often for every pod, whoever created it.
        with (
            control_plane(controllers=True, scheduler=False) as running,
            tempfile.TemporaryDirectory(prefix="ddp-bench-") as scratch,
        ):
            results = asyncio.run(_measure(running, asked.repeat, Path(scratch)))
    except (ClusterUnavailableError, BenchmarkError) as error:
        print(f"no benchmark: {error}", file=sys.stderr)
        return 1
    print(report.table(results))
    if asked.json:
        asked.json.write_text(json.dumps(report.as_data(results), indent=1) + "\n")
    return 0


async def _measure(running: ControlPlane, repeat: int, scratch: Path) -> Results:
    repetitions = []
    async with BareClient(running) as client:
        version = await client.get("/version")
        await scenarios.install_crd(client)
        _say("warming the API server up")
        await scenarios.raw(client, "warm-up", pods=RAW_PODS // 4)
        for i in range(1, repeat + 1):
            _say(f"repetition {i} of {repeat}: {RAW_PODS} raw pods")
            raw = await scenarios.raw(client, f"raw-{i}", pods=RAW_PODS)
            runs: list[JobsRun] = []
            for shape in SHAPES:
                _say(f"repetition {i} of {repeat}: {shape.jobs} x {shape.replicas} pods")
                namespace = f"jobs-{i}-{len(runs)}"
                log = scratch / f"{namespace}.log"
                run = await scenarios.jobs(client, running, namespace, shape=shape, log=log)
                for trouble in run.troubles:
                    _say(f"the operator says: {trouble}")
                runs.append(run)
            repetitions.append(Repetition(raw, runs))
    return Results(version["gitVersion"], os.cpu_count() or 1, repetitions)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
