"""Run by `helm test`: prove that a DDPJob is validated, reconciled and deleted.

The output is the evidence that CNCF's AI conformance asks of an operator: its custom resource is
served, an invalid one is refused, and a valid one is reconciled to its end.
"""

import asyncio
import json
import os

from ddp_operator.kube import ApiClient, load_credentials
from ddp_operator.ports import InvalidError
from ddp_operator.process.replica import JOBS

SECONDS = 280  # less than the 300 s of `helm test`


async def main():
    """Run the job in the environment variable JOB, a manifest in JSON."""
    job = json.loads(os.environ["JOB"])
    path = JOBS.path(namespace=job["metadata"]["namespace"])
    async with ApiClient(load_credentials()) as client:
        await refused(client, path, {**job, "spec": {**job["spec"], "replicas": 0}})
        name = (await client.request("POST", path, body=job))["metadata"]["name"]
        try:
            async with asyncio.timeout(SECONDS):
                await ended(client, f"{path}/{name}")
        except TimeoutError:
            raise SystemExit(
                f"{name} has not ended after {SECONDS} s: check that the operator runs"
            ) from None
        finally:
            await client.request("DELETE", f"{path}/{name}")
        print("a valid DDPJob was reconciled: pods created, training completed", flush=True)


async def refused(client, path, invalid):
    """Check that the API server refuses an invalid job."""
    try:
        await client.request("POST", path, body=invalid, params={"dryRun": "All"})
    except InvalidError as error:
        print(f"an invalid DDPJob is refused: {error.message}", flush=True)
    else:
        raise SystemExit("a DDPJob with 0 replicas was accepted: apply this release's CRD")


async def ended(client, path):
    """Wait until the job succeeds. If it fails, exit with its reason."""
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
