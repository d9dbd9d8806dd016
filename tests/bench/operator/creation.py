"""How fast the operator creates pods, and what that costs the API server.

Compared with a bare client that posts the same pods and does nothing more.
"""

import asyncio

from tests.bench.benchmark import Outcome, Settings
from tests.bench.reports import creation as creation_report
from tests.bench.reports.creation import Repetition, Results
from tests.bench.server import creation
from tests.bench.server.control_plane import say, server
from tests.bench.server.creation import JobsRun, Shape

RAW_PODS = 800
SHAPES = (Shape(jobs=100, replicas=8), Shape(jobs=1, replicas=500))


def measure(settings: Settings) -> Outcome:
    """Apply jobs all at once, and time their pods."""
    results = asyncio.run(_measure(settings))
    return Outcome(creation_report.table(results), creation_report.as_data(results))


async def _measure(settings: Settings) -> Results:
    repetitions = []
    async with server() as (running, client):
        version = await client.get("/version")
        say("warming the API server up")
        await creation.raw(client, "warm-up", pods=RAW_PODS // 4)
        for i in range(1, settings.repeat + 1):
            say(f"repetition {i} of {settings.repeat}: {RAW_PODS} raw pods")
            raw = await creation.raw(client, f"raw-{i}", pods=RAW_PODS)
            runs: list[JobsRun] = []
            for shape in SHAPES:
                say(f"repetition {i} of {settings.repeat}: {shape.jobs} x {shape.replicas} pods")
                namespace = f"jobs-{i}-{len(runs)}"
                log = settings.scratch / f"{namespace}.log"
                run = await creation.jobs(client, running, namespace, shape=shape, log=log)
                for trouble in run.troubles:
                    say(f"the operator says: {trouble}")
                runs.append(run)
            repetitions.append(Repetition(raw, runs))
    return Results(version["gitVersion"], repetitions)
