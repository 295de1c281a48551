"""Settings of MQTT that cannot be, and a broker without MQTT."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from broker.settings import Settings

WRONG: dict[str, dict[str, Any]] = {
    "mqtt.port and server.port are both 5672": {"mqtt": {"enabled": True, "port": 5672}},
    "http.port and mqtt.port are both 1883": {"mqtt": {"enabled": True}, "http": {"port": 1883}},
    "mqtt.tls_port and tls.port are both 5671": {"mqtt": {"enabled": True, "tls_port": 5671}, "tls": {"certfile": "c"}},
}


@pytest.mark.parametrize("text", WRONG)
def test_settings_that_cannot_be(text: str) -> None:
    """Each is refused before the start, with the reason."""
    with pytest.raises(ValidationError, match=text):
        Settings(**WRONG[text])


def test_ports_of_a_listener_that_is_off() -> None:
    """They take no port from others."""
    assert Settings(mqtt={"port": 5672}).mqtt.port == 5672


def test_a_broker_without_mqtt_imports_nothing_of_it() -> None:
    """Memory and the time of a start are as without it."""
    code = "import sys, broker.server; print([name for name in sys.modules if '.mqtt' in name])"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert found.strip() == "['broker.settings.mqtt', 'broker.parts.mqtt']"
