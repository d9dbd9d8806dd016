"""The server of the live page: the list of jobs and a page for each job, only on loopback."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web
from ddp_operator.ports import Key

from ddp_client.ui import pages
from ddp_client.ui.access import ADDRESS, PageAccess
from ddp_client.ui.polling import Poller

_NAME: Final = "[a-z0-9][-a-z0-9.]{0,252}"
"""A valid object name; nothing else may become part of a request's path."""
_SHUTDOWN_SECONDS: Final = 1.0
"""Time for open requests when the server stops."""


class PortTakenError(Exception):
    """The port cannot be used; the message says why in one line."""


def page_of(key: Key) -> str:
    """Return the path of a job's page."""
    return f"/jobs/{key.namespace}/{key.name}"


@asynccontextmanager
async def serving(poller: Poller, *, port: int) -> AsyncIterator[PageAccess]:
    """Serve inside the block; port 0 is any free port.

    Raises:
        PortTakenError: the port cannot be used.
    """
    access = PageAccess()
    runner = web.AppRunner(
        application(poller, access), access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS
    )
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, ADDRESS, port).start()
        except OSError as error:
            reason = error.strerror or error
            raise PortTakenError(f"cannot listen on port {port} (--port): {reason}") from error
        access.port = runner.addresses[0][1]
        yield access
    finally:
        await runner.cleanup()


def application(poller: Poller, access: PageAccess) -> web.Application:
    """Return the application, with access checks."""

    async def jobs(_: web.Request) -> web.Response:
        await poller.jobs.refresh()
        return _html(pages.jobs(poller))

    async def job(request: web.Request) -> web.Response:
        key = Key(request.match_info["namespace"], request.match_info["name"])
        report = poller.report(key)
        await report.refresh()
        status = 200 if report.value else 404
        return _html(pages.job(key, report), status)

    async def script(_: web.Request) -> web.Response:
        return web.Response(text=pages.script(), content_type="text/javascript", charset="utf-8")

    app = web.Application(middlewares=[access.middleware()])
    route = f"/jobs/{{namespace:{_NAME}}}/{{name:{_NAME}}}"
    app.add_routes([web.get("/", jobs), web.get(route, job), web.get(pages.SCRIPT, script)])
    return app


def _html(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, content_type="text/html", charset="utf-8")
