"""Publishers without confirms that lose messages at a limit: the broker counts and names them."""

from __future__ import annotations

import json

import pika
import pytest

from broker.cli.control_client import ask
from broker.cli.main import main
from tests.broker_process import BrokerProcess
from tests.integration.pika.conversation import parameters, ready

FULL = {"x-max-length": 1, "x-overflow": "reject-publish"}


def test_a_publisher_that_lost_messages_is_named(
    broker_process: BrokerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """By connection, channel and user, also later; what is nacked or becomes a dead letter does not count."""
    address, folder = broker_process.start().address, broker_process.folder
    given = {"connection_name": "shop"}
    with pika.BlockingConnection(parameters(address, client_properties=given)) as connection:
        careless, careful = connection.channel(), connection.channel()
        careless.queue_declare("q", arguments=FULL)
        for body in (b"1", b"2", b"3"):
            careless.basic_publish("", "q", body)
        assert ready(careless, "q") == 1
        careful.confirm_delivery()
        with pytest.raises(pika.exceptions.NackError):
            careful.basic_publish("", "q", b"4")
        dead = {**FULL, "x-overflow": "reject-publish-dlx", "x-dead-letter-exchange": "amq.fanout"}
        careless.queue_declare("p", arguments=dead)
        for body in (b"1", b"2"):
            careless.basic_publish("", "p", body)
        assert ready(careless, "p") == 1
        (row,) = ask(folder, "list_connections")
        name = row["name"]
        assert row["publishes_lost"] == 2
        assert [one["publishes_lost"] for one in ask(folder, "list_channels")] == [2, 0]
    (event,) = [event for event in broker_process.log_events() if event["event"] == "publish.lost"]
    assert (event["conn"], event["user"], event["vhost"]) == (name, "guest", "/")
    assert main(["doctor", "--data-dir", str(folder), "--json"]) == 0
    (found,) = [one for one in json.loads(capsys.readouterr().out) if one["check"] == "publisher"]
    assert found["verdict"] == "warn"
    assert found["found"] == (
        f"connection {name} (shop) of user 'guest' lost 2 messages that it published to vhost '/' at a limit, "
        "without confirms"
    )
