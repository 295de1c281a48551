"""Debian's rabbitmqadmin: every command of the script, unchanged, against the management API."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from tests.deadline import wait_until
from tests.manage.tools.conftest import Managed
from tests.manage.tools.rabbitmqadmin import RabbitmqAdmin, rabbitmqadmin_script

LISTS = (
    "connections", "channels", "consumers", "exchanges", "queues", "bindings", "users", "vhosts", "permissions",
    "nodes", "parameters", "policies", "operator_policies", "vhost_limits",
)  # fmt: skip

pytestmark = pytest.mark.skipif(
    rabbitmqadmin_script() is None and "TEST_TOOLS_REQUIRED" not in os.environ,
    reason="rabbitmqadmin is not installed: .ci/rabbitmqadmin fetches it",
)


@pytest.fixture(scope="module")
def module_admin(module_broker: tuple[str, int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitmqAdmin]:
    """Provide the script for the tests of the module."""
    script = rabbitmqadmin_script()
    assert script is not None, "rabbitmqadmin is not installed: .ci/rabbitmqadmin fetches it"
    admin = RabbitmqAdmin(script, tmp_path_factory.mktemp("home"), int(module_broker[0].rpartition(":")[2]))
    yield admin
    admin.close()


@pytest.fixture
def admin(module_admin: RabbitmqAdmin, managed: Managed) -> Iterator[RabbitmqAdmin]:
    """Provide the script, which takes the test's vhost for `declare`, `delete` and `list`."""
    before = module_admin.options
    module_admin.options = [*before, "--vhost", managed.vhost]
    yield module_admin
    module_admin.options = before


@pytest.mark.parametrize("form", ["table", "long", "kvp", "tsv", "bash", "pretty_json"])
def test_every_list_in_every_format(admin: RabbitmqAdmin, managed: Managed, form: str) -> None:
    """Each list prints in each format, with a connection, a consumer and objects of each kind."""
    admin.say("declare", "queue", "name=work")
    admin.say("declare", "policy", "name=short", "pattern=^x", 'definition={"max-length":5}')
    admin.say("declare", "operator_policy", "name=cap", "pattern=^x", 'definition={"max-length":9}')
    admin.say("declare", "vhost_limit", f"vhost={managed.vhost}", "name=max-queues", "value=7")
    connection = pika.BlockingConnection(pika.URLParameters(managed.amqp_url))
    channel = connection.channel()
    channel.basic_consume("work", lambda *_: None)
    wait_until(lambda: admin.rows("list", "consumers"), "the consumer is listed")
    wait_until(lambda: len(admin.rows("list", "channels")) > 0, "the channel is listed")
    for noun in LISTS:
        printed = admin.say("--format", form, "list", noun)
        assert form == "bash" or noun == "parameters" or "No items" not in printed, noun
    assert form == "bash" or admin.say("--format", form, "show", "overview")  # an overview has no name
    connection.close()


def test_columns_sorting_and_depth(admin: RabbitmqAdmin) -> None:
    """Columns, dotted ones too, sorting in both directions, and a depth for nested fields."""
    for name in ("b", "a", "c"):
        admin.say("declare", "queue", f"name={name}", 'arguments={"x-max-length":9}')
    table = admin.say("--sort", "name", "--sort-reverse", "list", "queues", "name", "durable")
    assert table.splitlines()[1].split() == ["|", "name", "|", "durable", "|"]
    assert [line.split()[1] for line in table.splitlines()[3:-1]] == ["c", "b", "a"]
    assert [row["name"] for row in admin.rows("--sort", "name", "list", "queues", "name")] == ["a", "b", "c"]
    overview = admin.say("--format", "kvp", "show", "overview", "object_totals.queues", "rabbitmq_version")
    assert overview.startswith('object_totals.queues="')
    assert "arguments.x-max-length" in admin.say("--depth", "2", "--format", "long", "list", "queues")


def test_life_of_a_queue(admin: RabbitmqAdmin, tmp_path: Path) -> None:
    """Declare, bind, publish, get in three ways, purge, unbind and delete."""
    assert admin.say("declare", "queue", "name=work", 'arguments={"x-max-length":10}') == "queue declared\n"
    assert admin.say("declare", "exchange", "name=orders", "type=topic") == "exchange declared\n"
    bound = admin.say("declare", "binding", "source=orders", "destination=work", "routing_key=eu.#")
    assert bound == "binding declared\n"
    assert admin.say("publish", "exchange=orders", "routing_key=eu.1", "payload=one") == "Message published\n"
    assert admin.say("publish", "exchange=orders", "routing_key=us", "payload=x") == (
        "Message published but NOT routed\n"
    )
    properties = 'properties={"delivery_mode":2,"headers":{"k":1},"content_type":"text/plain"}'
    admin.say("publish", "routing_key=work", properties, said="from standard input")
    wait_until(lambda: admin.rows("list", "queues", "name", "messages")[0].get("messages") == 2, "both are counted")

    shown = admin.rows("get", "queue=work", "count=5")  # back to the queue
    assert [row["payload"] for row in shown] == ["one", "from standard input"]
    assert [row["redelivered"] for row in shown] == [False, False]
    assert shown[1]["properties"] == {"content_type": "text/plain", "delivery_mode": 2, "headers": {"k": 1}}
    assert (shown[0]["exchange"], shown[0]["routing_key"], shown[0]["message_count"]) == ("orders", "eu.1", 1)
    assert "from standard input" in admin.say("get", "queue=work", "count=2")
    file = tmp_path / "payload"
    admin.say("get", "queue=work", f"payload_file={file}", "ackmode=ack_requeue_false")
    assert file.read_text() == "one"
    assert admin.say("purge", "queue", "name=work") == "queue purged\n"
    assert admin.say("get", "queue=work") == "No items\n"

    keys = {row["properties_key"] for row in admin.rows("list", "bindings") if row["source"] == "orders"}
    assert keys == {"eu.%23"}
    unbind = ("delete", "binding", "source=orders", "destination_type=queue", "destination=work")
    assert admin.say(*unbind, f"properties_key={keys.pop()}") == "binding deleted\n"
    assert admin.say("delete", "queue", "name=work") == "queue deleted\n"
    assert admin.refusal("delete", "queue", "name=work").startswith("Not found: /api/queues/")
    assert admin.say("delete", "exchange", "name=orders") == "exchange deleted\n"


def test_kinds_of_queues_and_exchanges(admin: RabbitmqAdmin) -> None:
    """A quorum queue by `queue_type`, a queue that is not durable, bindings between exchanges, with arguments."""
    admin.say("declare", "queue", "name=q1", "queue_type=quorum")
    admin.say("declare", "queue", "name=q2", "durable=false", "auto_delete=true")
    rows = {row["name"]: row for row in admin.rows("list", "queues")}
    assert rows["q1"]["type"] == "quorum" and rows["q1"]["arguments"] == {"x-queue-type": "quorum"}
    assert (rows["q2"]["durable"], rows["q2"]["auto_delete"]) == (False, True)
    for kind in ("direct", "fanout", "topic", "headers"):
        admin.say("declare", "exchange", f"name=x.{kind}", f"type={kind}", "internal=false", "durable=false")
    admin.say("declare", "binding", "source=x.topic", "destination_type=exchange", "destination=x.fanout")
    headers = 'arguments={"x-match":"any","a":1}'
    admin.say("declare", "binding", "source=x.headers", "destination=q1", headers)
    found = [row for row in admin.rows("list", "bindings") if row["source"]]
    assert {(row["source"], row["destination_type"], row["destination"]) for row in found} == {
        ("x.topic", "exchange", "x.fanout"),
        ("x.headers", "queue", "q1"),
    }
    assert next(row["arguments"] for row in found if row["source"] == "x.headers") == {"x-match": "any", "a": 1}
    for row in found:
        wanted = [f"{key}={row[key]}" for key in ("source", "destination_type", "destination", "properties_key")]
        assert admin.say("delete", "binding", *wanted) == "binding deleted\n"


def test_refusals_are_one_line(admin: RabbitmqAdmin) -> None:
    """Arguments that differ, unknown objects and an unknown type end with the broker's reason and code 1."""
    admin.say("declare", "queue", "name=work")
    refused = admin.refusal("declare", "queue", "name=work", "durable=false")
    assert "inequivalent arg 'durable' for queue 'work' in vhost" in refused
    assert "exchange type 'nothing'" in admin.refusal("declare", "exchange", "name=x", "type=nothing")
    assert admin.refusal("get", "queue=none").startswith("Not found: ")
    assert admin.refusal("--username", "nobody", "list", "queues") == "Access refused: /api/queues/" + (
        admin.options[-1].replace("/", "%2F") + "?columns=name,messages"
    )


def test_users_and_permissions(admin: RabbitmqAdmin, managed: Managed) -> None:
    """A user by password and one by hash; both may log in; permissions; deletion."""
    one, two = (f"u-{uuid.uuid4().hex[:8]}" for _ in range(2))
    assert admin.say("declare", "user", f"name={one}", "password=secret", "tags=management") == "user declared\n"
    row = next(row for row in admin.rows("list", "users") if row["name"] == one)
    assert row["tags"] == ["management"]
    grant = (f"user={one}", f"vhost={managed.vhost}", "configure=^a", "write=.*", "read=.*")
    assert admin.say("declare", "permission", *grant) == "permission declared\n"
    login = ("--username", one, "--password", "secret")
    assert admin.say(*login, "list", "queues") == "No items\n"
    admin.say(*login, "declare", "queue", "name=allowed")
    assert admin.refusal(*login, "declare", "queue", "name=other").startswith("Access refused: ")
    assert admin.refusal(*login, "list", "users") == "Access refused: /api/users"
    hash_of_one = "password_hash=W4Em3W0GgFyNa6clX7YPCDpRJPVZgA7cCsQoq+tWoWaGOb5P"  # of "test12"
    admin.say("declare", "user", f"name={two}", hash_of_one, "tags=")
    named = {row["user"] for row in admin.rows("list", "permissions") if row["vhost"] == managed.vhost}
    assert named == {"guest", one}
    assert admin.say("delete", "permission", f"user={one}", f"vhost={managed.vhost}") == "permission deleted\n"
    for user in (one, two):
        assert admin.say("delete", "user", f"name={user}") == "user deleted\n"
    assert admin.refusal(*login, "list", "queues").startswith("Access refused: ")


def test_policies_limits_and_vhosts(admin: RabbitmqAdmin, managed: Managed) -> None:
    """Policies of both kinds, limits and a vhost of its own: declared, listed, effective and deleted."""
    policy = ("name=short", "pattern=^work", 'definition={"max-length":3}', "priority=7", "apply-to=queues")
    assert admin.say("declare", "policy", *policy) == "policy declared\n"
    found = next(row for row in admin.rows("list", "policies") if row["vhost"] == managed.vhost)
    assert found == {
        "vhost": managed.vhost, "name": "short", "pattern": "^work", "apply-to": "queues",
        "definition": {"max-length": 3}, "priority": 7,
    }  # fmt: skip
    admin.say("declare", "operator_policy", "name=cap", "pattern=^work", 'definition={"max-length":2}')
    admin.say("declare", "queue", "name=work")
    row = admin.rows("list", "queues")[0]
    wait_until(lambda: admin.rows("list", "queues")[0].get("policy") == "short", "the policy applies")
    assert admin.rows("list", "queues")[0]["operator_policy"] == "cap", row
    admin.say("declare", "vhost_limit", f"vhost={managed.vhost}", "name=max-queues", "value=1")
    limits = [row["value"] for row in admin.rows("list", "vhost_limits") if row["vhost"] == managed.vhost]
    assert limits == [{"max-queues": 1}]
    assert "queue limit in vhost" in admin.refusal("declare", "queue", "name=more")
    assert admin.say("delete", "vhost_limit", f"vhost={managed.vhost}", "name=max-queues") == "vhost_limit deleted\n"
    assert admin.say("delete", "policy", "name=short") == "policy deleted\n"
    assert admin.say("delete", "operator_policy", "name=cap") == "operator_policy deleted\n"
    name = f"v-{uuid.uuid4().hex[:8]}"
    assert admin.say("declare", "vhost", f"name={name}", "tracing=true") == "vhost declared\n"
    assert name in admin.names("vhosts")
    assert admin.say("delete", "vhost", f"name={name}") == "vhost deleted\n"
    assert name not in admin.names("vhosts")


def test_closing_a_connection(admin: RabbitmqAdmin, managed: Managed) -> None:
    """A client is told that its connection was closed by an operator."""
    connection = pika.BlockingConnection(pika.URLParameters(managed.amqp_url))

    def ours() -> list[str]:
        rows = admin.rows("list", "connections", "name", "vhost")
        return [row["name"] for row in rows if row["vhost"] == managed.vhost]

    wait_until(ours, "the connection is listed")
    assert admin.say("close", "connection", f"name={ours()[0]}") == "connection closed\n"
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        connection.process_data_events(10)
    assert closed.value.reply_code == 320
    assert "via management plugin" in closed.value.reply_text
    wait_until(lambda: not ours(), "the connection is gone")


def test_export_and_import(admin: RabbitmqAdmin, managed: Managed, tmp_path: Path) -> None:
    """An import recreates exported objects: of one vhost, and of the whole broker."""
    admin.say("declare", "queue", "name=work", 'arguments={"x-max-length":10}')
    admin.say("declare", "exchange", "name=orders", "type=topic")
    admin.say("declare", "binding", "source=orders", "destination=work", "routing_key=eu.#")
    admin.say("declare", "policy", "name=short", "pattern=^x", 'definition={"max-length":5}')
    one, all_of_them = tmp_path / "vhost.json", tmp_path / "broker.json"
    assert admin.say("export", str(one)).startswith("Exported definitions for 127.0.0.1 to ")
    kept = json.loads(one.read_text())
    assert [queue["name"] for queue in kept["queues"]] == ["work"]
    assert kept["bindings"][0]["routing_key"] == "eu.#"
    admin.say("delete", "queue", "name=work")
    admin.say("delete", "exchange", "name=orders")
    assert "import process" in admin.say("import", str(one))
    wait_until(lambda: admin.names("queues") == {"work"}, "the queue is back")
    bound = [row["routing_key"] for row in admin.rows("list", "bindings") if row["source"] == "orders"]
    assert bound == ["eu.#"]
    admin.options = admin.options[:-2]  # the whole broker
    admin.say("export", str(all_of_them))
    whole = json.loads(all_of_them.read_text())
    assert {"users", "vhosts", "permissions", "parameters", "policies", "queues", "exchanges", "bindings"} <= set(whole)
    assert managed.vhost in {vhost["name"] for vhost in whole["vhosts"]}
    admin.say("import", str(all_of_them))
