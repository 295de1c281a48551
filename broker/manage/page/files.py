"""The files of the web page, served from memory with a strict content security policy."""

from __future__ import annotations

from functools import cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import Final

from starlette.responses import Response

from broker.manage.call import ApiRoute, Call, Needs

FOLDER: Final = Path(__file__).parent / "web"
START: Final = "index.html"
TYPES: Final = {".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".svg": "image/svg+xml"}
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-cache",  # the browser caches it, and revalidates it each time
}
"""Only scripts and styles of this origin are allowed, no inline ones, and no site can frame the page."""


def page_routes() -> list[ApiRoute]:
    """Return the routes of the page and its files; they need no login, because they contain no data."""
    names = sorted(file.relative_to(FOLDER).as_posix() for file in FOLDER.rglob("*") if file.is_file())
    files = [ApiRoute("GET", f"/page/{name}", Needs.NOTHING, partial(send, name)) for name in names if name != START]
    return [ApiRoute("GET", "/", Needs.NOTHING, partial(send, START)), *files]


async def send(name: str, call: Call) -> Response:
    """Answer with a file, or with 304 if the browser has it."""
    content, tag = content_of(name)
    headers = {**HEADERS, "ETag": tag}
    if call.request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=TYPES[Path(name).suffix])


@cache
def content_of(name: str) -> tuple[bytes, str]:
    """Return a file and its entity tag."""
    content = (FOLDER / name).read_bytes()
    return content, f'"{blake2b(content, digest_size=12).hexdigest()}"'
