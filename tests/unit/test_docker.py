"""The image and the compose file agree with the broker: settings, ports, the volume, and no root user."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from broker.cli.health import TIMEOUT_S
from broker.cli.main import build_parser
from broker.cli.rabbitmq_variables import VARIABLES
from broker.cli.settings_layers import load
from broker.settings import Settings
from tests.broker_process import BrokerProcess
from tests.deadline import DEADLINE_S
from tools.packages.image import stages

ROOT = Path(__file__).parents[2]
IMAGE, CLIENT = ROOT / "Dockerfile", ROOT / "docker" / "client.Dockerfile"


def instructions(file: Path) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile's last stage, each with its arguments."""
    return stages(file)[-1]


def the(name: str, file: Path = IMAGE) -> str:
    """Return the arguments of the only instruction of this name."""
    (found,) = [rest for instruction, rest in instructions(file) if instruction == name]
    return found


def environment() -> dict[str, str]:
    """Return the image's variables."""
    return dict(word.split("=", 1) for word in shlex.split(the("ENV")))


def settings_with(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> Settings:
    """Return the settings of a container with these variables."""
    for name in [name for name in os.environ if name.startswith(("SLOTMQ_", "RABBITMQ_"))]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value or "")
    return load()


def compose(file: str = "compose.yaml", **variables: str) -> dict[str, Any]:
    """Return a compose file with its variables substituted."""
    text = (ROOT / "docker" / file).read_text()
    filled = re.sub(r"\$\{(\w+):-([^}]*)\}", lambda match: variables.get(match[1]) or match[2], text)
    found: dict[str, Any] = yaml.safe_load(filled)
    return found


def health_command() -> list[str]:
    """Return the command of the health check, with this Python."""
    words: list[str] = json.loads(the("HEALTHCHECK").partition("CMD ")[2])
    assert words[0] == "python"
    return [sys.executable, *words[1:]]


@pytest.mark.parametrize("file", [IMAGE, CLIENT])
def test_nobody_runs_as_root(file: Path) -> None:
    """The user is a number, so that an orchestrator can see that it is not root, and it is never changed."""
    assert int(the("USER", file)) > 0
    names = [name for name, _ in instructions(file)]
    assert names.index("USER") > max(number for number, name in enumerate(names) if name in ("RUN", "COPY"))


def test_the_images_variables_are_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables set every address, the volume for the data, and guest from any address while it is alone."""
    settings = settings_with(monkeypatch, environment())
    assert settings.server.host == "0.0.0.0"
    assert settings.auth.guest_anywhere
    assert str(settings.server.data_dir) == the("VOLUME") == the("WORKDIR")


def test_the_volume_belongs_to_the_user() -> None:
    """The folder has that owner and a closed mode, both of which a new volume inherits."""
    (made,) = [rest for name, rest in instructions(IMAGE) if name == "RUN"]
    assert f"--uid {the('USER')} " in made
    assert re.search(rf"install -d -o slotmq -g slotmq -m 0750 {re.escape(the('VOLUME'))}$", made)


def test_the_ports_are_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exposed ports are those of AMQP and MQTT, also with TLS, HTTP and the metrics, which the image turns on."""
    settings = settings_with(monkeypatch, environment())
    assert settings.http.enabled is settings.metrics.enabled is True
    mqtt = settings.mqtt
    plain, secure = (settings.server.port, settings.tls.port), (mqtt.port, mqtt.tls_port)
    ports = (*plain, *secure, settings.http.port, settings.metrics.port)
    assert the("EXPOSE").split() == [str(port) for port in ports]
    assert "[cluster,manage,re2]" in IMAGE.read_text()


def test_the_image_serves_and_stops_in_order() -> None:
    """The entry point is `serve`, which stops in order at the image's stop signal."""
    words = json.loads(the("ENTRYPOINT")) + json.loads(the("CMD"))
    assert words[0] == "slotmq"
    serve = build_parser().parse_args(["serve"]).run
    assert build_parser().parse_args(words[1:]).run is serve
    assert the("STOPSIGNAL") == "SIGTERM"


def test_the_build_context_has_what_is_copied() -> None:
    """.dockerignore admits what COPY names and nothing else: neither tests nor local data."""
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert ignored[0] == "*"
    kept = {name[1:] for name in ignored if name.startswith("!")}
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", IMAGE.read_text(), re.MULTILINE)
    assert {name for names in copied for name in names.split()} == kept
    assert all((ROOT / name).exists() for name in kept)


def test_the_health_check_asks_the_running_broker(tmp_path: Path) -> None:
    """The image's command returns 0 while a broker uses the folder, on any port, and 1 otherwise."""
    folder = tmp_path / "folder"
    variables = {**os.environ, "SLOTMQ_SERVER__DATA_DIR": str(folder)}

    def check() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            health_command(), env=variables, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )

    process = BrokerProcess(folder).start()
    try:
        healthy = check()
        assert (healthy.returncode, healthy.stdout, healthy.stderr) == (0, "", "")
    finally:
        process.kill()
    assert check().returncode == 1


def test_the_health_check_ends_before_it_is_killed() -> None:
    """Docker's time limit exceeds the command's own, so that the command can report the problem."""
    found = re.search(r"--timeout=(\d+)s", the("HEALTHCHECK"))
    assert found is not None
    assert int(found[1]) > TIMEOUT_S


@pytest.mark.parametrize("login", [{}, {"SLOTMQ_USER": "alice", "SLOTMQ_PASS": "secret"}])
def test_the_services_agree_on_who_logs_in(login: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty variables count as unset, so all clients are guest; with a user, the clients log in as that user."""
    services = compose(**login)["services"]
    given = services["broker"]["environment"]
    assert set(given) <= VARIABLES
    settings = settings_with(monkeypatch, {**environment(), **given})
    assert settings.auth.begins_with_default_user
    name, password = settings.auth.default_user, settings.auth.default_pass.get_secret_value()
    assert (name, password) == (login.get("SLOTMQ_USER", "guest"), login.get("SLOTMQ_PASS", "guest"))
    for client in ("publisher", "consumer"):
        url = services[client]["environment"]["AMQP_URL"]
        assert url == f"amqp://{name}:{password}@broker:{settings.server.port}/%2F"


def test_the_broker_of_the_compose_file_is_reachable_from_this_machine_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ports are published on loopback, data is in a volume, and clients wait until the broker is healthy."""
    found = compose()
    broker = found["services"]["broker"]
    settings = settings_with(monkeypatch, environment())
    assert broker["ports"] == [f"127.0.0.1:{port}:{port}" for port in (settings.server.port, settings.http.port)]
    assert broker["volumes"] == [f"broker:{the('VOLUME')}"]
    assert "broker" in found["volumes"]
    assert (ROOT / "docker" / broker["build"]).resolve() == ROOT
    for client in ("publisher", "consumer"):
        assert found["services"][client]["depends_on"] == {"broker": {"condition": "service_healthy"}}


def test_the_clients_of_the_compose_file_are_in_their_image() -> None:
    """The files that the clients run are copied into the image and exist."""
    services = compose()["services"]
    copied = the("COPY", CLIENT).split()[:-1]
    for client in ("publisher", "consumer"):
        (script,) = services[client]["command"]
        assert script in copied
        assert (ROOT / "docker" / script).is_file()
        assert (ROOT / "docker" / services[client]["build"]["dockerfile"]) == CLIENT


def test_a_container_gets_more_time_to_stop_than_the_broker_takes() -> None:
    """The stop grace period exceeds the drain timeout plus the time for writing everything down."""
    grace = compose()["services"]["broker"]["stop_grace_period"]
    assert int(grace.removesuffix("s")) * 1000 > 2 * Settings().server.drain_timeout_ms
