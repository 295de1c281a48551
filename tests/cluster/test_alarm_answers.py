"""The limit of how long an alarm blocks is the cluster's; each node answers so for its own alarms."""

from __future__ import annotations

from pathlib import Path

import pika
import pika.exceptions
import pytest

from broker.cli.control_client import ask
from tests.cluster.two_nodes import Nodes
from tests.deadline import wait_until

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def test_the_node_with_the_alarm_nacks(tmp_path: Path, postgres_url: str, schema: str) -> None:
    """An operator sets the limit by one node; the other has an alarm and nacks, also after it joined again."""
    nodes = Nodes(tmp_path, postgres_url, schema, "a", "b")
    nodes.by_name["a"].environment["SLOTMQ_MEMORY__ALARM_BYTES"] = "1"
    with nodes:
        ask(nodes.by_name["b"].folder, "set_vhost_limits", name="/", limits={"max-blocked-seconds": 0})
        wait_until(lambda: ask(nodes.by_name["a"].folder, "list_vhosts")[0]["limits"], "the other node has the limit")
        accepting = nodes.channel("b", confirms=True)
        accepting.queue_declare("q", durable=True)

        def each_answers(count: int) -> None:
            with pytest.raises(pika.exceptions.NackError):
                nodes.channel("a", confirms=True).basic_publish("", "q", b"refused", PERSISTENT)
            accepting.basic_publish("", "q", b"taken", PERSISTENT)
            assert accepting.queue_declare("q", passive=True).method.message_count == count

        each_answers(1)
        nodes.by_name["a"].terminate()
        nodes.by_name["a"].start()
        each_answers(2)
