"""What `helm test` runs: creates a tiny DDPJob, says how it goes, and removes it."""

import asyncio
import json
import os

from ddp_operator.kube import ApiClient, load_credentials
from ddp_operator.replica import JOBS

SECONDS = 280  # of helm's own 300


async def main():
    """See the job in the environment to its end."""
    job = json.loads(os.environ["JOB"])
    path = JOBS.path(namespace=job["metadata"]["namespace"])
    async with ApiClient(load_credentials()) as client:
        name = (await client.request("POST", path, body=job))["metadata"]["name"]
        try:
            async with asyncio.timeout(SECONDS):
                await ended(client, f"{path}/{name}")
        except TimeoutError:
            raise SystemExit(f"{name} has not ended: is the operator there?") from None
        finally:
            await client.request("DELETE", f"{path}/{name}")


async def ended(client, path):
    """Wait until a job has succeeded; one that has not ends this process."""
    said = None
    while True:
        status = (await client.request("GET", path)).get("status") or {}
        phase, reason, message = (status.get(key) for key in ("phase", "reason", "message"))
        if (phase, reason) != said:
            said = phase, reason
            print(
                f"{path.rpartition('/')[2]}: {phase or 'not seen yet'}: {message or ''}", flush=True
            )
        if phase == "Failed":
            raise SystemExit(f"failed: {reason}")
        if phase == "Succeeded":
            return
        await asyncio.sleep(1)


asyncio.run(main())
