"""Health checks, the aliveness test, and counts of logins."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

from broker.server import BrokerServer
from tests.manage.api_talk import Api, managed

CHECKS = "health/checks"
WELL = (
    "alarms", "local-alarms", "virtual-hosts", "node-is-mirror-sync-critical", "node-is-quorum-critical",
    "certificate-expiration/1/months", "protocol-listener/amqp", "protocol-listener/amqp091", "protocol-listener/http",
    "ready-to-serve-clients", "is-in-service", "metadata-store/initialized", "metadata-store/initialized/with-data",
    "below-node-connection-limit", "quorum-queues-without-elected-leaders/all-vhosts",
)  # fmt: skip


async def test_a_broker_that_is_well_says_so(broker: BrokerServer, api: Api) -> None:
    """Every check answers 200 with status ok."""
    for check in (*WELL, f"port-listener/{broker.listener.port}", f"port-listener/{broker.manage.port()}"):
        assert (await api.expect(200, "GET", f"{CHECKS}/{check}"))["status"] == "ok", check
    for path in ("healthchecks/node", "aliveness-test/%2F"):
        assert await api.expect(200, "GET", path) == {"status": "ok"}
    assert broker.vhosts["/"].queues["aliveness-test"].ready == 0
    for check, status in (
        ("port-listener/1", 503),
        ("protocol-listener/mqtt", 503),
        ("port-listener/x", 400),
        ("port-listener/65536", 400),
        ("certificate-expiration/1/moons", 400),
        ("certificate-expiration/x/days", 400),
        ("nothing", 404),
    ):
        assert (await api.ask("GET", f"{CHECKS}/{check}")).status == status
    missing = await api.expect(503, "GET", f"{CHECKS}/protocol-listener/mqtt")
    assert missing == {
        "status": "failed", "reason": "No active listener", "missing": "mqtt", "protocols": ["amqp", "http"],
    }  # fmt: skip
    await api.expect(404, "GET", "aliveness-test/none")
    await api.expect(404, "GET", "healthchecks/node/other@host")


async def test_a_broker_that_is_ill_says_why(tmp_path: Path) -> None:
    """Alarms and vhosts that are down are 503 with their names."""
    async with managed(tmp_path, memory={"alarm_bytes": 1}, server={"connections_max": 1}) as (broker, api):
        failed = await api.expect(503, "GET", f"{CHECKS}/alarms")
        assert failed["alarms"][0]["resource"] == "memory"
        for check in ("local-alarms", "ready-to-serve-clients", "is-in-service"):
            await api.expect(503, "GET", f"{CHECKS}/{check}")
        broker.vhosts.offline["crm"] = "segment 7 is on fire"
        failed = await api.expect(503, "GET", f"{CHECKS}/virtual-hosts")
        assert failed == {"status": "failed", "reason": "Some virtual hosts are down", "virtual-hosts": ["crm"]}
        _reader, writer = await asyncio.open_connection("127.0.0.1", broker.listener.port)
        while not broker.listener.transports:  # noqa: ASYNC110 - the listener tells nobody
            await asyncio.sleep(0.01)
        await api.expect(503, "GET", f"{CHECKS}/below-node-connection-limit")
        writer.close()


async def test_a_certificate_that_ends_soon_is_named(tmp_path: Path) -> None:
    """The check names each listener whose certificate ends within the time."""
    issued = trustme.CA().issue_cert("127.0.0.1", not_after=datetime.now(UTC) + timedelta(days=10))
    (tmp_path / "cert.pem").write_bytes(issued.private_key_and_cert_chain_pem.bytes())
    tls = {"port": 0, "certfile": str(tmp_path / "cert.pem")}
    async with managed(tmp_path, tls=tls) as (broker, api):
        await api.expect(200, "GET", f"{CHECKS}/certificate-expiration/1/weeks")
        failed = await api.expect(503, "GET", f"{CHECKS}/certificate-expiration/2/weeks")
        [expired] = failed["expired"]
        assert (expired["protocol"], expired["port"]) == ("amqp/ssl", broker.listener.tls_port)
        (tmp_path / "cert.pem").write_text("gone")
        failed = await api.expect(503, "GET", f"{CHECKS}/certificate-expiration/1/days")
        assert "contains no certificate" in failed["reason"]


async def test_logins_are_counted_by_protocol_and_network(broker: BrokerServer, api: Api) -> None:
    """Failures and successes are counted apart; an administrator can begin anew."""
    path = f"auth/attempts/{broker.entrance.managed.node_name}"
    intruder = api.login("guest", "wrong")
    await intruder.expect(401, "GET", "whoami")
    [row] = await api.expect(200, "GET", path)
    assert row == {
        "protocol": "http", "auth_attempts": 2, "auth_attempts_failed": 1, "auth_attempts_succeeded": 1,
    }  # fmt: skip
    [row] = await api.expect(200, "GET", f"{path}/source")
    assert (row["remote_address"], row["auth_attempts_failed"]) == ("127.0.0.1", 1)
    eve = await api.with_user("eve", "monitoring")
    await eve.expect(200, "GET", path)
    await eve.expect(401, "DELETE", path)
    await api.expect(404, "GET", "auth/attempts/other@host")
    await api.expect(204, "DELETE", path)
    [row] = await api.expect(200, "GET", path)
    assert row["auth_attempts"] == 1
