"""The operator reaches more launchers than it may open connections, in turns."""

import asyncio
import json
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from aiohttp import web
from ddp_protocol.world import LEAD_SECONDS


async def run(script: str, *arguments: object, soft: int, hard: int) -> Any:
    """Run a script in a process with these limits of open files; return its output as JSON."""
    limits = f"import resource, sys\nresource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", limits + dedent(script), *map(str, arguments)),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    try:
        async with asyncio.timeout(120):
            printed, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0
    return json.loads(printed)


class Launchers:
    """Launchers on addresses of this machine. Each holds a poll for as long as it may."""

    def __init__(self) -> None:
        self.polled: set[str] = set()
        self.waits: set[int] = set()
        self.promises: set[int] = set()
        """After how many seconds without a poll they may lead."""

    async def answer(self, request: web.Request) -> web.Response:
        if request.method == "PUT":
            return web.json_response({"generation": 1, "ended": True})
        wait = int(request.query["wait"])
        self.polled.add(request.host)
        self.waits.add(wait)
        self.promises.add(int(request.query["lead"]))
        await asyncio.sleep(wait)
        return web.json_response({"number": 1, "generation": 0})


POLLING = """
    import asyncio, json, os, socket
    import aiohttp
    from ddp_operator.endpoints import HealthEndpoint
    from ddp_operator.ports import OutOfFilesError
    from ddp_operator.engine.trainers.requests import HttpTrainers
    from ddp_protocol.world import GroupAssignment

    port, jobs, taken = map(int, sys.argv[1:])
    hosts = [f"127.0.{n // 200 + 1}.{n % 200 + 1}:{port}" for n in range(jobs)]
    rounds, out_of_files = dict.fromkeys(hosts, 0), 0
    group = GroupAssignment(job_uid="u", attempt=0, generation=1, nodes=1, master_addr="j")

    async def listen(trainers, host):
        global out_of_files
        while True:
            try:
                asked = {"after": 0, "wait_seconds": 2, "lead_seconds": 5}
                answer = await trainers.poll_world(host, **asked, token="t")
                assert isinstance(answer, bytes), answer
                rounds[host] += 1
            except OutOfFilesError:
                out_of_files += 1
                await asyncio.sleep(0.2)

    async def is_healthy(port):
        try:
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/healthz") as response:
                    return response.status == 200
        except OSError:
            return False

    async def main():
        global out_of_files
        trainers, health = HttpTrainers(), HealthEndpoint()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            own = free.getsockname()[1]
        async with health.serving(own):
            others = [os.open("/dev/null", os.O_RDONLY) for _ in range(taken)]
            polls = [asyncio.create_task(listen(trainers, host)) for host in hosts]
            assigned, healthy = [], 0
            while min(rounds.values()) < 1:
                await asyncio.sleep(0.1)
                healthy += await is_healthy(own)
                try:
                    answer = await trainers.put_world(
                        hosts[0], group, wait_seconds=5, token="t"
                    )
                    assigned.append(answer is not None and answer.generation == 1)
                except OutOfFilesError:
                    out_of_files += 1
                for broken in (poll for poll in polls if poll.done()):
                    broken.result()
            for poll in polls:
                poll.cancel()
            await asyncio.gather(*polls, return_exceptions=True)
            await trainers.close()
        print(json.dumps([healthy, assigned, out_of_files]))

    asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("jobs", "taken"),
    [
        pytest.param(60, 0, id="few files"),
        pytest.param(100, 0, id="very few files", marks=pytest.mark.nightly),
        pytest.param(40, 265, id="files taken by others", marks=pytest.mark.nightly),
    ],
)
async def test_more_launchers_than_files_are_polled_in_turns(jobs: int, taken: int) -> None:
    """Probes and assignments work meanwhile."""
    launchers = Launchers()
    app = web.Application()
    app.router.add_route("*", "/world", launchers.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", 0).start()
    port = runner.addresses[0][1]
    healthy, assigned, out_of_files = await run(POLLING, port, jobs, taken, soft=300, hard=300)
    await runner.cleanup()
    assert healthy > 0
    assert assigned
    assert all(assigned), "a launcher that answers is not called silent"
    assert len(launchers.polled) == jobs
    assert max(launchers.promises) == LEAD_SECONDS, "the next turn may come late"
    assert min(launchers.waits) == 1, "shorter polls let each launcher have its turn"
    assert (out_of_files > 0) is (taken > 0)
