"""One run: the engine on a local cluster, its display, signals and kills."""

import asyncio
import signal
from collections.abc import Coroutine, Sequence
from typing import Any

from ddp_operator.api import ranks
from ddp_operator.api.job import DDPJob
from ddp_operator.ports import Event, Key, Manifest

from ddp_client.local.machine import LocalCluster, Workdir
from ddp_client.local.run.display import SafeDisplay
from ddp_client.local.run.engine import local_engine
from ddp_client.local.run.kills import KillRequest
from ddp_client.local.run.manifest import JobFile
from ddp_client.local.run.record import Record
from ddp_client.local.run.run_state import RunState
from ddp_client.views.job.last_words import readable

EXIT_SUCCEEDED = 0
EXIT_FAILED = 3
"""As of `kubectl ddp run` on a cluster."""
_LOOK_SECONDS = 1.0
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Session:
    """Runs one job to its end, or until a signal; implements `local.Listener`."""

    def __init__(
        self,
        file: JobFile,
        *,
        workdir: Workdir,
        run_state: RunState,
        display: SafeDisplay,
        kills: Sequence[KillRequest],
        progress_seconds: float,
        python: str,
    ) -> None:
        self._file = file
        self._run_state = run_state
        self._display = display
        self._kills = kills
        self._workdir = workdir
        self._record = Record()
        self._stopped_by: signal.Signals | None = None
        self._stop_order = asyncio.Event()
        self._kill_order = asyncio.Event()
        self._over = False
        self._cluster = LocalCluster(
            workdir=workdir,
            listener=self,
            config_maps=file.config_maps,
            python=python,
        )
        self._engine = local_engine(self._cluster, progress_seconds=progress_seconds)

    async def run(self) -> int:
        """Run, and return the command's exit code. No process is left behind.

        It stops early when nothing can be shown any more.
        """
        loop = asyncio.get_running_loop()
        self._display.on_failure = self._stop_order.set
        if self._display.error:
            self._stop_order.set()
        for number in _STOP_SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        helpers = [asyncio.create_task(self._kill_later(kill)) for kill in self._kills]
        helpers.append(asyncio.create_task(self._look_for_localhost()))
        try:
            async with self._cluster:
                self._engine.start()
                self._cluster.create_job(self._file.manifest)
                await self._until_over()
                self._over = not self._stop_order.is_set()
                await self._engine.stop()
                await self._end_pods()
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            for number in _STOP_SIGNALS:
                loop.remove_signal_handler(number)
            self._leave_record()
        if self._stopped_by is not None:
            return 128 + self._stopped_by
        return EXIT_SUCCEEDED if self._run_state.job.status.phase == "Succeeded" else EXIT_FAILED

    def _leave_record(self) -> None:
        try:
            self._record.write(self._workdir.path)
        except OSError as error:
            self._display.note(f"cannot write the record for reports: {error.strerror}")

    # The cluster reports these.

    def job_changed(self, job: Manifest) -> None:
        """See `local.Listener`."""
        self._engine.job_changed(job)
        self._record.job(job)
        self._run_state.job_changed(DDPJob.parse(job))
        self._display.refresh()

    def job_deleted(self, job: Key) -> None:
        """See `local.Listener`."""
        self._engine.job_gone(job)

    def pods_changed(self, job: Key) -> None:
        """See `local.Listener`."""
        if not self._over:  # pods that are deleted after the end are no news
            self._run_state.pods_changed(self._cluster.pods_of(job))
            self._record.pods(self._cluster.pod_manifests(job))
        self._engine.pods_changed(job)
        self._display.refresh()

    def pod_logged(self, pod: Key, line: str) -> None:
        """See `local.Listener`."""
        self._run_state.logged(line)
        self._display.log(self._run_state.pod(pod), line)

    def event_emitted(self, job: Key, event: Event) -> None:
        """See `local.Listener`."""
        self._record.event(job, event)
        message = readable(event.message, succeeded=event.reason == "Succeeded")
        self._display.event(event.reason, message, warning=event.warning)

    # Around the run.

    def _on_signal(self, number: signal.Signals) -> None:
        if self._stop_order.is_set():
            self._kill_order.set()
            return
        self._stopped_by = number
        self._stop_order.set()
        self._display.event(
            "Stopping",
            f"got {number.name}: pods save and stop; repeat the signal to kill them",
            warning=True,
        )

    async def _until_over(self) -> None:
        run_state = self._run_state
        await _first_of(
            run_state.until(lambda: run_state.finished or run_state.stuck), self._stop_order.wait()
        )

    async def _end_pods(self) -> None:
        if not self._over:
            await _first_of(
                self._cluster.delete_all_pods(grace_seconds=None), self._kill_order.wait()
            )
        # The cluster's context kills the remaining pods.

    async def _look_for_localhost(self) -> None:
        """Warn once that a pod reaches another at localhost."""
        crossings = await self._cluster.crossings()
        while not crossings:
            await asyncio.sleep(_LOOK_SECONDS)
            crossings = await self._cluster.crossings()
        first = min(crossings)
        self._display.event(
            "Localhost",
            f"pod {first.client} reaches pod {first.server} at localhost, port {first.port}; in a "
            "cluster it cannot: let the script use MASTER_ADDR as it is set, not localhost",
            warning=True,
        )

    async def _kill_later(self, request: KillRequest) -> None:
        run_state = self._run_state
        index = ranks.pod_of(run_state.job.spec, request.rank)
        await run_state.until(lambda: run_state.running_since is not None)
        if request.after_seconds is not None:
            await asyncio.sleep(request.after_seconds)
        else:
            step = request.at_step or 0
            await run_state.until(
                lambda: run_state.progress is not None and run_state.progress.step >= step
            )
        while not run_state.finished:
            pod = run_state.newest_pod(index)
            if pod is not None and self._cluster.kill_pod(pod.key):
                run_state.lost(request, pod)
                self._display.event(
                    "Killed",
                    f"rank {request.rank} (pod {pod.key.name}) with SIGKILL, "
                    f"as --kill-rank {request} requests",
                    warning=True,
                )
                return
            await run_state.next_change()


async def _first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait until one is done, and cancel the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result
