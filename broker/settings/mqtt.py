"""The settings of the MQTT listener."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from broker.settings.fields import GiB, KiB, MiB, Seconds, SettingsSection, Size, number, text

VhostName = Annotated[str, Field(min_length=1, max_length=255)]


class Mqtt(SettingsSection):
    """The MQTT listener: MQTT 3.1.1 and 5 on a topic exchange."""

    enabled: bool = False
    """Whether the broker listens for MQTT clients."""
    host: str = text()
    """The address to listen on; empty means server.host."""
    port: int = number(1883, 0, 65535, "", "IANA mqtt")
    """The port; 0 takes a free port, which the log names."""
    tls_port: int = number(8883, 0, 65535, "", "IANA secure-mqtt")
    """The port with TLS, if tls.certfile is set; 0 takes a free port."""
    exchange: str = text("amq.topic", least=1, most=255)
    """The exchange for topics. Any other than amq.topic is created if missing, with x-topic-dialect: mqtt, and leaves
    topics unchanged."""
    vhost: str = text(most=255)
    """The vhost of clients whose user name does not contain one (vhost:user); empty means auth.default_vhost."""
    port_to_vhost: dict[int, VhostName] = {}
    """The vhosts of clients by the port that they connect to: a port of MQTT, or that of HTTP for WebSocket. A vhost in
    the user name takes precedence, but not for a client with a certificate."""
    anonymous_user: str = text(most=255)
    """The user whose permissions clients without user name and password have; empty refuses them."""
    prefetch: int = number(10, 1, 65535, "messages", "RabbitMQ mqtt.prefetch")
    """How many deliveries at QoS 1 a client can have unacknowledged; a client can ask for fewer."""
    session_expiry_max_s: Seconds = number(
        86_400, 1, 315_360_000, "s", "RabbitMQ mqtt.max_session_expiry_interval_seconds"
    )
    """How long a session can last without a connection. A session of MQTT 3.1.1 that is not clean lasts that long."""
    packet_max_bytes: Size = number(
        16 * MiB, 4 * KiB, 256 * MiB, "bytes", "RabbitMQ mqtt.max_packet_size_authenticated"
    )
    """The largest packet of a client that has logged in; before that it is 4 KiB."""
    retained_max: int = number(100_000, 0, 10_000_000, "messages", "RabbitMQ, rabbit_mqtt_retained_msg_store")
    """How many messages a vhost retains. A client that retains one more is disconnected."""
    retained_max_bytes: Size = number(1 * GiB, 0, 1024 * GiB, "bytes", "RabbitMQ, rabbit_mqtt_retained_msg_store")
    """The total size of the messages that a vhost retains."""

    def ports(self, *, tls: bool, plain: bool) -> dict[str, int]:
        """Return the ports to open, by the names of their settings."""
        wanted = {"mqtt.port": self.port} if plain else {}
        return {**wanted, **({"mqtt.tls_port": self.tls_port} if tls else {})} if self.enabled else {}
