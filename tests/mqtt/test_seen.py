"""MQTT clients as operators see them: in lists, in the API and in the log."""

from __future__ import annotations

from pathlib import Path

from broker.cli.control_client import ask
from tests.broker_process import BrokerProcess
from tests.deadline import wait_until
from tests.mqtt.conftest import mqtt_port, mqtt_process
from tests.mqtt.raw_mqtt import CONNACK, RawMqtt, connect, text


def test_a_connection_shows_protocol_client_and_session(shared_mqtt: BrokerProcess, port: int, name: str) -> None:
    """Both versions are named as RabbitMQ names them, with the client id, the keep alive, the session and the will."""
    will = b"\0" + text("gone") + text("x")
    with RawMqtt(port) as five, RawMqtt(port) as four, RawMqtt(port) as nameless:
        expiry = b"\x11\x00\x00\x00\x64"
        five.send(connect(f"{name}-5", keep_alive_s=30, clean=False, properties=expiry, will=will, will_flags=0x2C))
        assert five.expect(CONNACK)[1] == 0
        four.enter(f"{name}-4", 4)
        nameless.enter("")
        rows = {row["client_id"]: row for row in ask(shared_mqtt.folder, "list_connections")}
        row = rows[f"{name}-5"]
        assert (row["protocol"], row["connection_name"]) == ("MQTT 5-0", f"{name}-5")
        assert row["client_properties"]["client_id"] == f"{name}-5"
        assert row["mqtt"] == {
            "client_id": f"{name}-5",
            "keep_alive_s": 30,
            "clean_start": False,
            "session_expiry_s": 100,
            "will_topic": "gone",
            "will_qos": 1,
            "will_retain": True,
        }
        row = rows[f"{name}-4"]
        assert (row["protocol"], row["mqtt"]["session_expiry_s"], row["mqtt"]["will_topic"]) == ("MQTT 3-1-1", 0, None)
        assigned = [client_id for client_id in rows if client_id and client_id.startswith("mqtt-")]
        assert [rows[client_id]["connection_name"] for client_id in assigned] == assigned != []


def test_events_of_a_client_have_its_id(tmp_path: Path) -> None:
    """A login, a refused one, a fault and an end are logged with the client id."""
    process = mqtt_process(tmp_path / "folder").start()
    with RawMqtt(mqtt_port(process)) as client:
        client.send(connect("refused", password="wrong"))
        client.expect(CONNACK)
    with RawMqtt(mqtt_port(process)) as client:
        client.enter("faulty")
        assert client.send(b"\x30\x03\x00\x01+").read()
    wanted = [
        ("connection.refused", "refused"),
        ("connection.opened", "faulty"),
        ("connection.failed", "faulty"),
        ("connection.closed", "faulty"),
    ]
    wait_until(lambda: _told(process)[-4:] == wanted, "four events with client ids")
    assert process.terminate() == 0


def _told(process: BrokerProcess) -> list[tuple[str, str]]:
    return [(one["event"], one["client_id"]) for one in process.log_events() if "client_id" in one]
