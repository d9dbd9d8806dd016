"""Access to the pages: only with the address that the command printed.

All users of the machine, and every page open in a browser on it, can reach a server on loopback.
Therefore the address has a secret token, and the `Host` header is checked.
"""

import secrets
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

ADDRESS: Final = "127.0.0.1"
_REOPEN: Final = "open the address that the running `kubectl ddp ui` printed"
_HEADERS: Final = {
    "Cache-Control": "no-store",
    # Pictures have style attributes. Only files that this server serves may be scripts.
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",  # other ports of this machine are the same site
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class PageAccess:
    """Admits requests with the token."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(32)
        self.port = 0
        # Browsers share cookies between ports: each server needs a cookie name of its own.
        self._cookie = f"ddp-ui-{secrets.token_hex(4)}"

    def url(self, path: str) -> str:
        """Return an address with the token."""
        return f"http://{ADDRESS}:{self.port}{path}?token={self.token}"

    def middleware(self) -> Middleware:
        """Return the middleware for all requests, also for those without a page."""

        @web.middleware
        async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
            answer: web.StreamResponse | None = self._refused(request)
            if answer is None:
                try:
                    answer = await handler(request)
                except web.HTTPException as error:
                    answer = web.Response(status=error.status, text=f"{error.reason}\n")
            answer.headers.update(_HEADERS)
            return answer

        return check

    def _refused(self, request: web.Request) -> web.Response | None:
        """Return the refusal, or the redirect of a request with the token; None to admit it."""
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, text="read-only\n", headers={"Allow": "GET, HEAD"})
        if request.headers.get("Host") not in (f"{ADDRESS}:{self.port}", f"localhost:{self.port}"):
            # DNS rebinding: another site may resolve its own name to this machine.
            return web.Response(status=403, text=f"wrong host name: {_REOPEN}\n")
        if self._is_token(request.query.get("token", "")):
            # Remove the token from the address, which browsers show and store.
            path = "/" + request.rel_url.raw_path.lstrip("/")  # "//" would begin a host name
            answer = web.Response(status=303, headers={"Location": path})
            answer.set_cookie(self._cookie, self.token, httponly=True, samesite="Strict")
            return answer
        if self._is_token(request.cookies.get(self._cookie, "")):
            return None
        return web.Response(status=403, text=f"missing or old token: {_REOPEN}\n")

    def _is_token(self, text: str) -> bool:
        return secrets.compare_digest(text.encode(errors="replace"), self.token.encode())
