"""Export and import definitions of the broker or of one vhost."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from broker.administration.slices import run_in_slices
from broker.core.definitions.json_text import reading_json
from broker.manage.answers import Response, json_answer, no_content, object_answer
from broker.manage.api.names import COMPATIBLE_VERSION
from broker.manage.call import ApiRoute, Call, Needs
from broker.manage.refusal import bad_request

ALL: Final = "/api/definitions"
OF_VHOST: Final = "/api/definitions/{vhost}"
FORM: Final = "multipart/form-data"
OUTER_LEVELS: Final = 2  # nesting levels of a document: its lists, and their entries


def _of_vhost(call: Call) -> dict[str, str]:
    return {"vhost": call.vhost().name} if "vhost" in call.words else {}


async def export(call: Call) -> Response:
    """Export the definitions; `download` is the file name under which a browser saves them."""
    exported = await call.operate("export_definitions", **_of_vhost(call))
    name = call.query.get("download", "")
    headers = {"Content-Disposition": f'attachment; filename="{_plain(name)}"'} if name else {}
    return object_answer(
        {"rabbit_version": COMPATIBLE_VERSION, "rabbitmq_version": COMPATIBLE_VERSION, **exported}, headers=headers
    )


async def import_definitions(call: Call) -> Response:
    """Import a document of definitions, which is the body or a file in a form. If the broker refuses an entry, nothing
    is imported, unless `skip_refused` is set. With `outcome`, the answer contains the counts and the skipped entries.
    """
    vhost, body = _of_vhost(call), await call.body()
    if call.request.headers.get("content-type", "").startswith(FORM):
        body = await asyncio.to_thread(_file_of, call.request.headers["content-type"], body)
    try:
        document: Any = await run_in_slices(reading_json(body, OUTER_LEVELS))
    except ValueError as error:
        raise bad_request(f"a definitions document is one JSON object: {error}") from None
    skips = call.asks("skip_refused")
    outcome = await call.operate("import_definitions", definitions=document, skip_refused=skips, **vhost)
    return json_answer(outcome) if call.asks("outcome") else no_content()


def _file_of(content_type: str, body: bytes) -> bytes:
    """Return the file of a form. Raises: HttpRefused for a form without one."""
    from email.parser import BytesParser  # noqa: PLC0415 - forms are rare, and these modules need 0.6 MB
    from email.policy import HTTP  # noqa: PLC0415 - as above

    head = f"Content-Type: {content_type}\r\n\r\n".encode("latin-1", "replace")
    form = BytesParser(policy=HTTP).parsebytes(head + body)
    for part in form.iter_parts() if form.is_multipart() else ():
        content: Any = part.get_payload(decode=True)
        if part.get_param("name", header="content-disposition") == "file" and isinstance(content, bytes):
            return content
    raise bad_request("the form has no part 'file'")


def _plain(name: str) -> str:
    """Return a file name without characters that have a meaning in the header or in a path."""
    return "".join(letter for letter in name if letter.isascii() and (letter.isalnum() or letter in "._-"))[:100]


ROUTES: Final = (
    ApiRoute("GET", ALL, Needs.ADMINISTRATOR, export),
    ApiRoute("POST", ALL, Needs.ADMINISTRATOR, import_definitions),
    ApiRoute("GET", OF_VHOST, Needs.ADMINISTRATOR, export),
    ApiRoute("POST", OF_VHOST, Needs.ADMINISTRATOR, import_definitions),
)
