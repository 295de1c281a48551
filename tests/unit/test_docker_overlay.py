"""The compose file of the overlay is right: six brokers, each of which knows its neighbours and can reach them."""

from __future__ import annotations

from functools import partial
from urllib.parse import urlsplit

import pytest

from broker.settings import Settings
from tests.unit import test_docker as docker
from tests.unit.test_docker import environment, settings_with, the

LEAVES = {"publishers": 5672, "europe": 5673, "america": 5674}
INNERS = ("middle-1", "middle-2", "middle-3")


compose = partial(docker.compose, "compose.overlay.yaml")


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> dict[str, Settings]:
    """Provide the settings of each service: those of the image and its own."""
    given = {service: one["environment"] for service, one in compose()["services"].items()}
    return {service: settings_with(monkeypatch, environment() | own) for service, own in given.items()}


def test_the_brokers_form_the_tree(settings: dict[str, Settings]) -> None:
    """Each service holds the broker of its name; leaves and inner brokers are each other's neighbours, all of them."""
    held = {service: one.overlay.node[0] for service, one in settings.items()}
    assert {service: broker.broker for service, broker in held.items()} == {name: name for name in (*LEAVES, *INNERS)}
    for name, broker in held.items():
        others = INNERS if name in LEAVES else tuple(LEAVES)
        assert broker.leaf is (name in LEAVES)
        assert [neighbour.broker for neighbour in broker.neighbours] == list(others)
        assert all(neighbour.node == held[neighbour.broker].node for neighbour in broker.neighbours)


def test_each_link_is_opened_by_one_end(settings: dict[str, Settings]) -> None:
    """The leaves connect, as the first user, to the services of the inner brokers on AMQP's port."""
    for name, one in settings.items():
        for neighbour in one.overlay.node[0].neighbours:
            url = urlsplit(neighbour.url.get_secret_value())
            assert url.hostname == (neighbour.broker if name in LEAVES else None)
            if name in LEAVES:
                assert (url.username, url.password) == ("guest", "guest")
        assert one.auth.guest_anywhere


def test_all_agree_which_exchanges_take_part(settings: dict[str, Settings]) -> None:
    """The list is the same at all leaves."""
    assert {one.overlay.exchanges for one in settings.values()} == {("orders.*",)}


def test_leaves_are_reachable_from_this_machine_only() -> None:
    """Each leaf has a port of its own, the inner brokers none; each has its own volume."""
    services = compose()["services"]
    assert {name: service["ports"] for name, service in services.items()} == {
        **{name: [f"127.0.0.1:{port}:5672"] for name, port in LEAVES.items()},
        **{name: [] for name in INNERS},
    }
    assert all(services[name]["volumes"] == [f"{name}:{the('VOLUME')}"] for name in services)
    assert set(compose()["volumes"]) == set(services)
