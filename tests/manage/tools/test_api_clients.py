"""Python clients of the management API from PyPI: what they read, create, change and delete."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pika
import pytest

from tests.deadline import wait_until
from tests.manage.tools.conftest import Managed


@pytest.fixture
def connection(managed: Managed) -> Iterator[pika.BlockingConnection]:
    """Provide a client of the test's vhost."""
    connection = pika.BlockingConnection(pika.URLParameters(managed.amqp_url))
    yield connection
    if connection.is_open:
        connection.close()


class TestAmqpstorm:
    """AMQPStorm's management package."""

    @pytest.fixture
    def api(self, managed: Managed) -> Iterator[Any]:
        """Provide the client."""
        management = pytest.importorskip("amqpstorm.management")
        with management.ManagementApi(managed.url, "guest", "guest") as api:
            yield api

    def test_reads(self, api: Any, managed: Managed, connection: pika.BlockingConnection) -> None:
        """Overview, nodes, identity, health, connections and channels; lists page by page and by expression."""
        assert api.overview()["rabbitmq_version"]
        assert api.whoami()["name"] == "guest"
        assert api.aliveness_test(managed.vhost) == {"status": "ok"}
        assert api.cluster_name()["name"]
        [node] = api.nodes()
        assert api.node(node["name"])["name"] == node["name"]
        assert api.healthchecks.get()["status"] == "ok"
        assert api.healthchecks.get(node["name"])["status"] == "ok"
        channel = connection.channel()
        wait_until(
            lambda: [row for row in api.channel.list() if row["vhost"] == managed.vhost], "the channel is listed"
        )
        [row] = [row for row in api.channel.list() if row["vhost"] == managed.vhost]
        assert api.channel.get(quote(row["name"]))["number"] == channel.channel_number
        own = api.connection.get(row["connection_details"]["name"])
        assert (own["vhost"], own["user"], own["protocol"]) == (managed.vhost, "guest", "AMQP 0-9-1")
        for number in range(5):
            channel.queue_declare(f"q{number}")
        names = {row["name"] for row in api.queue.list(managed.vhost, page_size=2)} - {"aliveness-test"}
        assert sorted(names) == [f"q{number}" for number in range(5)]
        found = api.queue.list(managed.vhost, name="^q[13]$", use_regex=True, page_size=100)
        assert sorted(row["name"] for row in found) == ["q1", "q3"]
        api.connection.close(row["connection_details"]["name"], reason="a test")
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="a test"):
            connection.process_data_events(10)

    def test_changes(self, api: Any, managed: Managed) -> None:
        """Queues, exchanges, bindings and messages, each change made twice."""
        vhost = managed.vhost
        for _ in range(2):
            api.queue.declare("work", vhost, durable=True, arguments={"x-max-length": 9})
            api.exchange.declare("orders", "topic", vhost, durable=True)
            api.exchange.declare("copies", "fanout", vhost)
            api.queue.bind("work", "orders", "eu.#", vhost)
            api.exchange.bind("copies", "orders", "#", vhost)
        assert api.queue.get("work", vhost)["arguments"] == {"x-max-length": 9}
        assert api.exchange.get("orders", vhost)["type"] == "topic"
        assert {row["routing_key"] for row in api.queue.bindings("work", vhost)} == {"work", "eu.#"}
        assert {row["destination"] for row in api.exchange.bindings("orders", vhost)} == {"work", "copies"}
        properties = {"headers": {"k": "v"}, "content_type": "text/plain"}
        assert api.basic.publish("one", "eu.1", "orders", vhost, properties) == {"routed": True}
        [message] = api.basic.get("work", vhost, requeue=True)
        assert (message.body, message.properties["headers"]) == ("one", {"k": "v"})
        [message] = api.basic.get("work", vhost, requeue=False, to_dict=True)
        assert message["redelivered"] is True
        api.basic.publish("two", "eu.2", "orders", vhost)
        api.queue.purge("work", vhost)
        assert api.basic.get("work", vhost) == []
        api.queue.unbind("work", "orders", "eu.#", vhost, properties_key="eu.%23")
        api.exchange.unbind("copies", "orders", "#", vhost, properties_key="%23")
        api.exchange.delete("orders", vhost)
        api.queue.delete("work", vhost)
        for gone in (lambda: api.queue.get("work", vhost), lambda: api.exchange.get("orders", vhost)):
            with pytest.raises(Exception, match=r"NOT-FOUND|Not Found") as refused:
                gone()
            assert getattr(refused.value, "error_code", 404) == 404

    def test_users_and_vhosts(self, api: Any, managed: Managed) -> None:
        """Users with permissions, one by one and in bulk."""
        one, two = (f"u-{uuid.uuid4().hex[:8]}" for _ in range(2))
        api.user.create(one, "secret", tags="monitoring,management")
        api.user.create(two, "secret")
        assert sorted(api.user.get(one)["tags"]) == ["management", "monitoring"]
        api.user.set_permission(one, managed.vhost, ".*", "^w", "")
        assert api.user.get_permission(one, managed.vhost)["write"] == "^w"
        assert [row["vhost"] for row in api.user.get_permissions(one)] == [managed.vhost]
        assert {row["user"] for row in api.virtual_host.get_permissions(managed.vhost)} == {"guest", one}
        api.user.delete_permission(one, managed.vhost)
        assert api.user.get_permissions(one) == []
        api.user.delete([one, two])
        assert not {one, two} & {row["name"] for row in api.user.list()}
        name = f"v-{uuid.uuid4().hex[:8]}"
        api.virtual_host.create(name)
        assert api.virtual_host.get(name)["name"] == name
        api.virtual_host.delete(name)
        assert name not in {row["name"] for row in api.virtual_host.list()}


class TestPyrabbit:
    """pyrabbit2."""

    @pytest.fixture
    def api(self, managed: Managed) -> Any:
        """Provide the client."""
        pyrabbit2 = pytest.importorskip("pyrabbit2")
        return pyrabbit2.Client(managed.url.removeprefix("http://"), "guest", "guest")

    def test_everything(self, api: Any, managed: Managed, connection: pika.BlockingConnection) -> None:
        """Each of its calls that RabbitMQ answers without a plugin."""
        vhost = managed.vhost
        assert api.is_alive(quote(vhost, safe="")) is True
        assert api.get_whoami()["name"] == "guest"
        assert api.get_overview()["object_totals"]["connections"] >= 0
        assert api.get_nodes()[0]["running"] is True
        assert managed.vhost in api.get_vhost_names()
        assert api.create_queue(vhost, "work", durable=True, auto_delete=False) == 201
        assert api.create_exchange(vhost, "orders", "topic", durable=True)
        assert api.create_binding(vhost, "orders", "work", "eu.#") == 201
        assert api.publish(vhost, "orders", "eu.1", "one") is True
        wait_until(lambda: api.get_queue(vhost, "work").get("messages") == 1, "the message is counted")
        assert api.get_queue_depth(vhost, "work") == 1
        assert "work" in {row["name"] for row in api.get_queues(vhost)}
        assert [row["payload"] for row in api.get_messages(vhost, "work", 1, True)] == ["one"]
        assert {row["routing_key"] for row in api.get_queue_bindings(vhost, "work")} == {"work", "eu.#"}
        api.purge_queue(vhost, "work")
        api.delete_binding(vhost, "orders", "work", "eu.%23")
        user = f"u-{uuid.uuid4().hex[:8]}"
        api.create_user(user, "secret", tags="management")
        assert user in {row["name"] for row in api.get_users()}
        api.set_vhost_permissions(vhost, user, ".*", ".*", ".*")
        assert api.get_permission(vhost, user)["read"] == ".*"
        assert [row["vhost"] for row in api.get_user_permissions(user)] == [managed.vhost]
        api.delete_permission(vhost, user)
        api.delete_user(user)
        api.create_policy(vhost, "short", pattern="^x", definition={"max-length": 3}, priority=1)
        assert api.get_policy(vhost, "short")["definition"] == {"max-length": 3}
        api.delete_policy(vhost, "short")
        assert api.get_definitions()["rabbit_version"]
        assert isinstance(api.get_extensions(), list)
        assert api.get_cluster_name()["name"]
        wait_until(api.get_connections, "the connection is listed")
        name = next(row["name"] for row in api.get_connections() if row["vhost"] == managed.vhost)
        assert api.get_connection(name)["name"] == name
        assert connection.is_open
        api.delete_connection(name)
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
            connection.process_data_events(10)
        api.delete_exchange(vhost, "orders")
        api.delete_queue(vhost, "work")


class TestRabbitmqAdmin:
    """rabbitmq-api-admin, whose deletion of a policy ends in a slash."""

    @pytest.fixture
    def api(self, managed: Managed) -> Any:
        """Provide the client."""
        rabbitmq_admin = pytest.importorskip("rabbitmq_admin")
        return rabbitmq_admin.RabbitAPIClient("127.0.0.1", managed.port, auth=("guest", "guest"))

    def test_everything(self, api: Any, managed: Managed, connection: pika.BlockingConnection) -> None:
        """Each of its calls."""
        vhost = managed.vhost
        assert api.overview()["management_version"]
        assert api.get_cluster_name()["name"]
        [node] = api.list_nodes()
        assert api.get_node(node["name"], memory=True)["name"] == node["name"]
        assert isinstance(api.list_extensions(), list)
        assert api.whoami()["name"] == "guest"
        assert api.is_vhost_alive(vhost) == {"status": "ok"}
        api.create_queue_for_vhost("work", vhost, {"durable": True, "arguments": {}})
        api.create_exchange_for_vhost("orders", vhost, {"type": "topic", "durable": True})
        assert api.get_queue_for_vhost("work", vhost)["durable"] is True
        assert api.get_exchange_for_vhost("orders", vhost)["type"] == "topic"
        assert "work" in {row["name"] for row in api.list_queues_for_vhost(vhost)}
        assert "work" in {row["destination"] for row in api.list_bindings_for_vhost(vhost)}
        assert api.list_bindings_by_queue("work", vhost)[0]["properties_key"] == "work"
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "work", b"one")
        assert [row["payload"] for row in api.extract_messages("work", vhost)] == ["one"]
        channel.basic_consume("work", lambda *_: None)
        wait_until(lambda: api.list_consumers_for_vhost(vhost), "the consumer is listed")
        wait_until(lambda: any(row["vhost"] == vhost for row in api.list_channels()), "the channel is listed")
        name = next(row["connection_details"]["name"] for row in api.list_channels() if row["vhost"] == vhost)
        assert [row["number"] for row in api.list_connection_channels(name)] == [1]
        assert api.get_connection(name)["name"] == name
        user = f"u-{uuid.uuid4().hex[:8]}"
        api.create_user(user, "secret", tags="policymaker")
        assert api.get_user(user)["name"] == user
        api.create_user_permission(user, vhost, ".*", ".*", ".*")
        assert api.get_user_permission(vhost, user)["configure"] == ".*"
        assert [row["user"] for row in api.list_user_permissions(user)] == [user]
        api.delete_user_permission(user, vhost)
        api.delete_user(user)
        api.create_policy_for_vhost(vhost, "short", {"max-length": 3}, pattern="^x", apply_to="queues")
        assert [row["name"] for row in api.list_policies_for_vhost(vhost)] == ["short"]
        assert api.get_policy_for_vhost(vhost, "short")["apply-to"] == "queues"
        api.delete_policy_for_vhost(vhost, "short")
        assert api.list_policies_for_vhost(vhost) == []
        api.post_definitions(api.get_definitions())
        api.delete_exchange_for_vhost("orders", vhost, if_unused=True)
        api.delete_connection(name, reason="a test")
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="a test"):
            connection.process_data_events(10)
        api.delete_queue_for_vhost("work", vhost)
