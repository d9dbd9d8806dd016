"""The operator's ports for probes and metrics in a process of their own.

python -m tests.unit.endpoints.serving HEALTH_PORT METRICS_PORT
"""

import asyncio
import sys

from ddp_operator.endpoints import HealthEndpoint, MetricsEndpoint


async def main(health_port: int, metrics_port: int) -> None:
    """Serve until the process is killed."""
    metrics = MetricsEndpoint()
    metrics.text = lambda: "ddp_operator_leader 1\n"
    async with HealthEndpoint().serving(health_port), metrics.serving(metrics_port):
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
