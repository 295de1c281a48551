"""pytest fixtures: `broker` in this process, its `broker_url`, `mqtt_broker`, and `broker_process` in its own process.

pytest loads this plugin in every run where the package is installed, even for a project with a `broker` of its own. So
the plugin is outside the package, and imports the package only when a fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from broker.testing.broker import Broker

__all__ = ["broker", "broker_process", "broker_url", "mqtt_broker"]

PACKAGE: Final = Path(__file__).resolve().with_name("broker")


@pytest.fixture
def broker() -> Iterator[Broker]:
    """Provide a fresh broker in a thread of this process, for clients that block and clients that do not."""
    _check_not_hidden()
    from broker.testing.broker import Broker  # noqa: PLC0415 - only test runs that use a broker load one

    with Broker() as running:
        yield running


@pytest.fixture
def broker_url(broker: Broker) -> str:
    """Provide the address of `broker` for a client, with user and password."""
    return broker.url


@pytest.fixture
def mqtt_broker() -> Iterator[Broker]:
    """Provide a broker for AMQP and MQTT clients: `mqtt_broker.mqtt_port`, `mqtt_broker.mqtt_url`."""
    _check_not_hidden()
    from broker.testing.broker import Broker  # noqa: PLC0415 - as above

    with Broker(mqtt=True) as running:
        yield running


@pytest.fixture
def broker_process(tmp_path: Path) -> Iterator[str]:
    """Provide the address of a fresh broker in a process of its own, with its files on disk."""
    _check_not_hidden()
    from broker.testing.process import broker_process as process  # noqa: PLC0415 - as above

    with process(tmp_path / "slotmq") as url:
        yield url


def hidden_by() -> str | None:
    """Return the origin of another `broker` that hides SlotMQ's package, or None, without importing anything."""
    try:
        spec = find_spec("broker")
    except ValueError:  # a module that a test created by hand
        spec = None
    where = spec.origin if spec else None
    if where is not None and Path(where).resolve().parent == PACKAGE:
        return None
    return where or "a module without a file"


def _check_not_hidden() -> None:
    """Fail the test in one line when an import of `broker` would load the project's own package."""
    where = hidden_by()
    if where is not None:
        pytest.fail(
            f"`broker` is {where} in this run and hides SlotMQ's package of that name: keep its folder off sys.path "
            "(pytest --import-mode=importlib, python -P), or do without these fixtures (-p no:slotmq)",
            pytrace=False,
        )
