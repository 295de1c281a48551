"""The compose file of the cluster is right: settings, one database, names of nodes, and a balancer that checks them."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from broker.cli.rabbitmq_variables import VARIABLES
from broker.settings import Settings
from tests.unit import test_docker as docker
from tests.unit.test_docker import IMAGE, ROOT, environment, settings_with, the

NODES = ("node-a", "node-b", "node-c")


compose = partial(docker.compose, "compose.cluster.yaml")


def settings_of(service: str, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Return the settings of a node: those of the image and of its service."""
    return settings_with(monkeypatch, {**environment(), **compose()["services"][service]["environment"]})


def balancer() -> str:
    """Return the balancer's settings."""
    text: str = compose()["configs"]["haproxy"]["content"]
    return text


def test_the_nodes_share_one_database_under_names_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each node has another name and another volume, and all have the URL of the database with its login."""
    services = compose()["services"]
    found = [settings_of(name, monkeypatch).cluster for name in NODES]
    assert [cluster.node for cluster in found] == ["a", "b", "c"]
    (url,) = {cluster.url.get_secret_value() for cluster in found}
    parts, given = urlsplit(url), services["postgres"]["environment"]
    assert parts.username == given["POSTGRES_USER"]
    assert parts.password == given["POSTGRES_PASSWORD"]
    assert (parts.hostname, parts.port) == ("postgres", 5432)
    assert parts.path == "/" + given["POSTGRES_DB"]
    volumes = [services[name]["volumes"] for name in NODES]
    assert volumes == [[f"{name}:{the('VOLUME')}"] for name in NODES]
    assert set(compose()["volumes"]) == {*NODES, "postgres"}


def test_every_variable_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables that are not settings of SlotMQ are those of RabbitMQ's image; empty ones count as unset."""
    for name in NODES:
        given = compose()["services"][name]["environment"]
        assert {variable for variable in given if not variable.startswith("SLOTMQ_")} <= VARIABLES
        assert settings_of(name, monkeypatch).auth.begins_with_default_user


def test_the_image_has_the_database_driver() -> None:
    """The nodes run the image of the project, which is installed with the extra."""
    extras = re.search(r'pip install --no-cache-dir "\.\[(.*)\]"', IMAGE.read_text())
    assert extras is not None
    assert "cluster" in extras[1].split(",")
    for name in NODES:
        assert (ROOT / "docker" / compose()["services"][name]["build"]).resolve() == ROOT


def test_nodes_wait_for_the_database_and_the_balancer_for_nodes() -> None:
    """A service starts when those that it needs are healthy."""
    services = compose()["services"]
    healthy = {"condition": "service_healthy"}
    assert all(services[name]["depends_on"] == {"postgres": healthy} for name in NODES)
    assert services["balancer"]["depends_on"] == dict.fromkeys(NODES, healthy)
    assert services["postgres"]["healthcheck"]["test"][1] == "pg_isready"


def test_only_the_balancer_is_reachable_and_from_this_machine_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients connect to the balancer on AMQP's port; nothing else publishes a port."""
    services = compose()["services"]
    port = settings_of("node-a", monkeypatch).server.port
    assert services.pop("balancer")["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert not any("ports" in service for service in services.values())


def test_the_balancer_asks_each_node_whether_it_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every node is a server on AMQP's port, checked by HTTP on the port of its HTTP server, which runs."""
    settings = settings_of("node-a", monkeypatch)
    assert settings.http.enabled
    assert re.findall(r"^  server \w+ (\S+)", balancer(), re.MULTILINE) == [
        f"{name}:{settings.server.port}" for name in NODES
    ]
    assert f"check port {settings.http.port} " in balancer()
    assert "httpchk GET /readyz?unready=404\n" in balancer()
    assert "http-check disable-on-404\n" in balancer()
    assert f"bind :{settings.server.port}\n" in balancer()


def test_the_balancer_outlasts_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle connection is not cut before its heartbeats would tell."""
    heartbeat_s = settings_of("node-a", monkeypatch).amqp.heartbeat_s
    for side in ("client", "server"):
        found = re.search(rf"timeout {side} (\d+)h", balancer())
        assert found is not None and int(found[1]) * 3600 > 2 * heartbeat_s


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed")
def test_haproxy_takes_the_settings(tmp_path: Path) -> None:
    """haproxy finds nothing wrong in its settings, with addresses in place of the names of services."""
    file = tmp_path / "haproxy.cfg"
    file.write_text(re.sub(r"node-\w:", "127.0.0.1:", balancer()))
    done = subprocess.run(["haproxy", "-c", "-f", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
