"""Who may see the pages: whoever has the address that the command printed, and nobody through them.

A server on loopback is reached by all users of the machine, and by every page that a browser on it
has open; hence a secret, and a look at the name under which it was called.
"""

import secrets
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

ADDRESS: Final = "127.0.0.1"
_LATER: Final = "open the address that `kubectl ddp ui` has printed when it was started last"
_HEADERS: Final = {
    "Cache-Control": "no-store",
    # Pictures have style attributes, and nothing has a script but what this server serves as one.
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


class Door:
    """Lets in who knows the token, on the port that is listened on."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(32)
        self.port = 0
        # Cookies are a machine's, not a port's: another one of these has another cookie.
        self._cookie = f"ddp-ui-{secrets.token_hex(4)}"

    def url(self, path: str) -> str:
        """An address that lets in."""
        return f"http://{ADDRESS}:{self.port}{path}?token={self.token}"

    def middleware(self) -> Middleware:
        """What all requests pass through, those for no page, too."""

        @web.middleware
        async def passed(request: web.Request, handler: Handler) -> web.StreamResponse:
            answer: web.StreamResponse | None = self._refused(request)
            if answer is None:
                try:
                    answer = await handler(request)
                except web.HTTPException as error:
                    answer = web.Response(status=error.status, text=f"{error.reason}\n")
            answer.headers.update(_HEADERS)
            return answer

        return passed

    def _refused(self, request: web.Request) -> web.Response | None:
        """The answer to who may not come in, or came with the token; None to who may."""
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, text="read-only\n", headers={"Allow": "GET, HEAD"})
        if request.headers.get("Host") not in (f"{ADDRESS}:{self.port}", f"localhost:{self.port}"):
            # A page elsewhere may have let its own name mean this machine.
            return web.Response(status=403, text=f"not under this name: {_LATER}\n")
        if self._is_token(request.query.get("token", "")):
            # Out of the address, which is seen by others, and remembered.
            path = "/" + request.rel_url.raw_path.lstrip("/")  # two would begin a host's name
            answer = web.Response(status=303, headers={"Location": path})
            answer.set_cookie(self._cookie, self.token, httponly=True, samesite="Strict")
            return answer
        if self._is_token(request.cookies.get(self._cookie, "")):
            return None
        return web.Response(status=403, text=f"no token, or one of before: {_LATER}\n")

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(errors="replace"), self.token.encode())
