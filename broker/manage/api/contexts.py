"""Where the broker listens, as the API says it: listeners for every protocol, and contexts for those of HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker.manage.managed_broker import ManagedBroker

__all__ = ["contexts_of", "listeners_of"]


def listeners_of(broker: ManagedBroker) -> list[dict[str, Any]]:
    """Return a row for each port that the broker listens on."""
    server, listener = broker.settings().server, broker.listener
    ports = [("amqp", server.host, listener.port), ("amqp/ssl", server.host, listener.tls_port), *_http_ports(broker)]
    return [
        {
            "ip_address": host,
            "node": broker.node_name,
            "port": port,
            "protocol": protocol,
            "socket_opts": {"backlog": server.backlog, "nodelay": True},
        }
        for protocol, host, port in ports
        if port
    ]


def contexts_of(broker: ManagedBroker) -> list[dict[str, Any]]:
    """Return a row for each port of HTTP."""
    texts = {"http": "SlotMQ Management", "https": "SlotMQ Management"}
    return [
        {
            "description": texts.get(protocol, "SlotMQ Prometheus"),
            "ip": host,
            "node": broker.node_name,
            "path": "/",
            "port": str(port),
            "ssl_opts": [],
        }
        for protocol, host, port in _http_ports(broker)
        if port
    ]


def _http_ports(broker: ManagedBroker) -> list[tuple[str, str, int]]:
    settings, ports = broker.settings(), broker.ports()
    http, metrics = settings.http, settings.metrics
    return [
        ("https" if http.tls else "http", settings.host_of(http), ports["http_port"] or 0),
        (
            "https/prometheus" if metrics.tls else "http/prometheus",
            settings.host_of(metrics),
            ports["metrics_port"] or 0,
        ),
    ]
