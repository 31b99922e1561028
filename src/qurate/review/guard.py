"""Which requests the server accepts: those of its own page alone.

It listens on the loopback address only, but every page that a browser on this machine shows can send requests there,
and so can other users of the machine (who can read the token while a browser is started with it on its command line;
`--no-browser` starts none). So a request must know the token of the address, name this server as its host (a
foreign name that was made to point here is refused), and if it changes anything come from this origin.
"""

from __future__ import annotations

import re
import secrets

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_DIGITS = re.compile(r"[0-9]{1,20}")  # Python reads no number of thousands
MOST_BYTES = 2_000_000
"""Of a request: the answers to a whole class of pseudo-labels fit."""
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""Of every answer: the page may load its own parts, send requests to this server, and do nothing else."""


class Guard:
    """Lets requests through to an application, or refuses them with 403.

    Args:
        app: The application.
        token: What every path begins with.
        port: Of the server.
    """

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        self._app, self._token = app, token
        names = ("127.0.0.1", "localhost")
        self._hosts = {f"{name}:{port}" for name in names} | ({*names} if port == 80 else set())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application."""
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message.get("headers", [])}  # the report has its own policy
                own = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in given]
                message = {**message, "headers": [*message.get("headers", []), *own]}
            await send(message)

        reason = self.why_refused(scope)
        app = PlainTextResponse(f"Refused: {reason}.\n", 403) if reason else self._app
        await app(scope, receive, send_with_headers)

    def why_refused(self, scope: Scope) -> str:
        """Why a request is refused; empty if it is not."""
        headers = Headers(scope=scope)
        hosts, origins, sites = (headers.getlist(name) for name in ("host", "origin", "sec-fetch-site"))
        given = scope["path"].split("/")[1] if scope["path"].startswith("/") else ""
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return "the host is not this server"
        if not secrets.compare_digest(given.encode(), self._token.encode()):
            return "the address lacks the token; open the one that `qurate open` printed"
        if any(origin != f"http://{hosts[0]}" for origin in origins) or (scope["method"] == "POST" and not origins):
            return "the request comes from another page"
        if any(site not in ("same-origin", "none") for site in sites):
            return "the request comes from another site"
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return "the method is not allowed"
        lengths = headers.getlist("content-length")
        if any(not _DIGITS.fullmatch(length) or int(length) > MOST_BYTES for length in lengths):
            return "the request is too large"
        return ""
