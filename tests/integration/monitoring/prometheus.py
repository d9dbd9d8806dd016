"""A Prometheus that scrapes one operator every second."""

import contextlib
import math
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml

from tests.chart.queries import ALERTS
from tests.ports import free_port
from tests.waiting import eventually

_INSTALLED: Final = {"namespace": "ddp-operator", "pod": "ddp-operator-0"}
"""Labels that a PodMonitor adds to the metrics of an operator from the chart."""


class Prometheus:
    """Answers queries."""

    def __init__(self, session: aiohttp.ClientSession, url: str, log: Path) -> None:
        self._session = session
        self._url = url
        self._log = log

    async def values(self, expression: str) -> list[float]:
        """Return the numbers in the answer to a query, without NaN."""
        answer = await self._get("query", query=expression)
        return [
            value
            for sample in answer["result"]
            if not math.isnan(value := float(sample["value"][1]))
        ]

    async def until_answered(self, expression: str, *, above: float = -math.inf) -> None:
        """Wait until one number in the answer to a query is above this."""
        values: list[float] = []

        async def answered() -> bool:
            nonlocal values
            values = await self.values(expression)
            return any(value > above for value in values)

        await eventually(answered, interval_seconds=0.2, describe=lambda: f"{expression}: {values}")

    async def rules(self) -> list[dict[str, Any]]:
        """Return the evaluated rules."""
        [group] = (await self._get("rules"))["groups"]
        found: list[dict[str, Any]] = group["rules"]
        return found

    async def ready(self) -> None:
        """Wait until it answers."""

        async def answers() -> bool:
            with contextlib.suppress(aiohttp.ClientError):
                async with self._session.get(f"{self._url}/-/ready") as answer:
                    return answer.status == 200
            return False

        await eventually(answers, interval_seconds=0.1, describe=self._log.read_text)

    async def _get(self, what: str, **parameters: str) -> Any:
        async with self._session.get(f"{self._url}/api/v1/{what}", params=parameters) as answer:
            body = await answer.json()
        assert body["status"] == "success", (parameters, body)
        return body["data"]


@contextlib.asynccontextmanager
async def scraping(programs: Path, folder: Path, *, target: int) -> AsyncIterator[Prometheus]:
    """Run a Prometheus with the chart's rules that scrapes a port of this machine.

    Its data is in `folder`.
    """
    scraped = {"targets": [f"127.0.0.1:{target}"], "labels": _INSTALLED}
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(ALERTS)],
        "scrape_configs": [{"job_name": "ddp-operator", "static_configs": [scraped]}],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    with _running(programs / "prometheus", folder, address) as log:
        async with aiohttp.ClientSession() as session:
            prometheus = Prometheus(session, f"http://{address}", log)
            await prometheus.ready()
            yield prometheus


@contextlib.contextmanager
def _running(program: Path, folder: Path, address: str) -> Iterator[Path]:
    log = folder / "prometheus.log"
    arguments = [
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]
    with log.open("wb") as output:
        process = subprocess.Popen([program, *arguments], stdout=output, stderr=output)
    try:
        yield log
        assert process.poll() is None, log.read_text()
    finally:
        process.kill()
        process.wait()
