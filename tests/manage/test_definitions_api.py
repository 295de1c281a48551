"""Definitions over the management API: exported, imported as a body or as the file of a form, all or nothing."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from broker.server import BrokerServer
from tests.in_process import client_of
from tests.manage.api_talk import Api, managed

# As rabbitmqadmin's Python script and the page of RabbitMQ send a file.
FORM = "multipart/form-data; boundary=XX"


def form(document: Any, name: str = "file") -> bytes:
    """Return a form with a file."""
    head = f'--XX\r\nContent-Disposition: form-data; name="{name}"; filename="d.json"\r\n'
    return f"{head}Content-Type: application/json\r\n\r\n{json.dumps(document)}\r\n--XX--\r\n".encode()


async def prepared(api: Api) -> None:
    """Make one of everything."""
    for path, body in (
        ("vhosts/shop", {"description": "d"}),
        ("users/ada", {"password": "x", "tags": "management"}),
        ("permissions/shop/ada", {"configure": "", "write": "", "read": ".*"}),
        ("queues/shop/q", {"durable": True, "arguments": {"x-max-length": 3}}),
        ("queues/shop/passing", {"durable": False}),
        ("exchanges/shop/e", {"type": "topic", "durable": True}),
        ("policies/shop/p", {"pattern": "^q", "definition": {"expires": 9_000_000}}),
        ("parameters/shovel/shop/s", {"value": {"a": 1}}),
        ("global-parameters/g", {"value": [1]}),
    ):
        await api.expect(201, "PUT", path, body)
    await api.expect(201, "POST", "bindings/shop/e/e/q/q", {"routing_key": "k"})


async def test_arguments_keep_their_types(tmp_path: Path) -> None:
    """Decimals, moments and octets that are not text have no type in JSON."""
    given = {"d": Decimal("1.5"), "t": datetime(2026, 11, 29, tzinfo=UTC), "o": bytearray(b"\xff\x00"), "n": 1}

    def bound(broker: BrokerServer) -> Any:
        (binding,) = broker.vhosts["/"].exchanges["h"].bindings
        return [(name, type(value), value) for name, value in binding.arguments.items()]

    async with managed(tmp_path / "1") as (broker, api), client_of(broker) as channel:
        exchange = await channel.declare_exchange("h", "headers", durable=True)
        await (await channel.declare_queue("q", durable=True)).bind(exchange, "", arguments=given)
        made, whole = bound(broker), await api.expect(200, "GET", "definitions")
    assert {name: value for name, _, value in made} == given
    async with managed(tmp_path / "2") as (broker, api):
        await api.expect(204, "POST", "definitions", whole)
        assert bound(broker) == made


async def test_what_is_exported_can_be_imported(tmp_path: Path) -> None:
    """Another broker that imports an export, of everything or of a vhost, exports it again."""
    async with managed(tmp_path / "1") as (_broker, api):
        await prepared(api)
        said = await api.ask("GET", "definitions?download=a%2Fb%22.json")
        assert said.headers["content-disposition"] == 'attachment; filename="ab.json"'
        whole = said.json
        of_shop = await api.expect(200, "GET", "definitions/shop")
        await api.expect(404, "GET", "definitions/none")
    assert (whole["rabbitmq_version"], whole["product_name"]) == ("4.3.0", "SlotMQ")
    assert [row["name"] for row in whole["queues"]] == ["q"]  # transient ones are not definitions
    assert of_shop["bindings"][0]["source"] == "e"
    assert not {"users", "vhosts", "permissions"}.intersection(of_shop)
    async with managed(tmp_path / "2") as (_broker, api):
        await api.expect(204, "POST", "definitions", whole)
        assert await api.expect(200, "GET", "definitions") == whole
        await api.expect(204, "POST", "definitions", whole)
        await api.expect(201, "PUT", "vhosts/other")
        await api.expect(204, "POST", "definitions/other", of_shop)
        found = await api.expect(200, "GET", "definitions/other")
        assert found == of_shop


async def test_a_file_of_a_form_is_imported(broker: BrokerServer, api: Api) -> None:
    """A browser and rabbitmqadmin send a form; what was made is told to whom asks for the outcome."""
    document = {"queues": [{"name": "q", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}]}
    assert (await api.ask("POST", "definitions", form(document), Content_Type=FORM)).status == 204
    assert "q" in broker.vhosts["/"].queues
    for body, kind in (
        (form(document, "other"), FORM),
        (b"", FORM),
        (b"x", FORM),
        (form(document), "multipart/form-data"),
    ):
        said = await api.ask("POST", "definitions", body, Content_Type=kind)
        assert said.refusal == (400, "bad_request", "the form has no part 'file'")
    said = await api.ask("POST", "definitions?outcome=true", form(document), Content_Type=FORM)
    assert (said.status, said.json["present"]) == (200, {"queues": 1})


async def test_bad_definitions_change_nothing(broker: BrokerServer, api: Api) -> None:
    """One bad entry refuses the document, with its place; skip_refused takes the rest."""
    good = {"name": "good", "vhost": "/", "durable": True, "arguments": {}}
    for body in (
        b"{bad",
        b"[]",
        {"queues": [good, {"vhost": "/"}]},
        {"queues": [good, {**good, "vhost": "none"}]},
        {"queues": [good, {**good, "name": "bad", "arguments": {"x-max-length": "x"}}]},
        {"queues": [good], "users": [{"name": "u", "tags": "", "password_hash": "!"}]},
        {"queues": [good], "policies": [{"vhost": "/", "name": "p", "pattern": "(", "definition": {}}]},
    ):
        assert (await api.expect(400, "POST", "definitions", body))["error"] == "bad_request"
        assert "good" not in broker.vhosts["/"].queues
    body = {"queues": [good, {**good, "name": "bad", "arguments": {"x-max-length": "x"}}]}
    outcome = await api.expect(200, "POST", "definitions?skip_refused=true&outcome=true", body)
    assert (outcome["made"], len(outcome["skipped"])) == ({"queues": 1}, 1)
    await api.expect(404, "POST", "definitions/none", {})
    eve = await api.with_user("eve", "policymaker", configure=".*", write=".*", read=".*")
    for method in ("GET", "POST"):
        await eve.expect(401, method, "definitions/%2F", {} if method == "POST" else None)
