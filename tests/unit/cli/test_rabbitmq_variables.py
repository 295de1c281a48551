"""The variables of RabbitMQ's image as settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.cli.broker_folder import SettingsError
from broker.cli.rabbitmq_variables import ignored_variables
from broker.cli.settings_layers import load

pytestmark = pytest.mark.usefixtures("without_settings")


def first_user(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, file: Path | None = None) -> list[str]:
    """Return user, password and vhost of the settings that an environment gives."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    auth = load(file).auth
    return [auth.default_user, auth.default_pass.get_secret_value(), auth.default_vhost]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ["guest", "guest", "/"]),
        ({"RABBITMQ_DEFAULT_USER": "a", "RABBITMQ_DEFAULT_PASS": "1234", "RABBITMQ_DEFAULT_VHOST": "v"},
         ["a", "1234", "v"]),
        ({"RABBITMQ_DEFAULT_USER": "a", "RABBITMQ_DEFAULT_PASS": "p", "SLOTMQ_DEFAULT_PASS": "q"}, ["a", "q", "/"]),
        ({"SLOTMQ_DEFAULT_PASS": "q", "SLOTMQ_AUTH__DEFAULT_PASS": "r"}, ["guest", "r", "/"]),
        ({"RABBITMQ_DEFAULT_USER": "", "RABBITMQ_DEFAULT_PASS": "", "RABBITMQ_DEFAULT_PASS_FILE": ""},
         ["guest", "guest", "/"]),
        ({"RABBITMQ_LOGS": "-", "RABBITMQ_NODENAME": "rabbit@here"}, ["guest", "guest", "/"]),
    ],
)  # fmt: skip
def test_the_later_of_the_variables_wins(
    environment: dict[str, str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """RabbitMQ's variable is overridden by ours of that name, and that by a setting; empty ones are ignored."""
    assert first_user(environment, monkeypatch) == expected


def test_a_variable_wins_over_the_file_of_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable overrides the settings file, like every variable."""
    file = tmp_path / "slotmq.toml"
    file.write_text('[auth]\ndefault_user = "a"\ndefault_pass = "p"\ndefault_vhost = "v"\n')
    assert first_user({"RABBITMQ_DEFAULT_PASS": "q"}, monkeypatch, file) == ["a", "q", "v"]


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_value_may_be_in_a_file(end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A final line end is removed, and spaces belong to the password."""
    (tmp_path / "secret").write_bytes(f" s3 cret {end}".encode())
    environment = {"RABBITMQ_DEFAULT_PASS_FILE": str(tmp_path / "secret")}
    assert first_user(environment, monkeypatch) == ["guest", " s3 cret ", "/"]


@pytest.mark.parametrize(
    ("content", "environment", "problem"),
    [
        (None, {"RABBITMQ_DEFAULT_PASS_FILE": "{file}"},
         "RABBITMQ_DEFAULT_PASS_FILE: {file}: cannot be read: No such file or directory"),
        (b"", {"SLOTMQ_DEFAULT_PASS_FILE": "{file}"}, "SLOTMQ_DEFAULT_PASS_FILE: {file}: empty"),
        (b"\xff", {"SLOTMQ_DEFAULT_USER_FILE": "{file}"}, "SLOTMQ_DEFAULT_USER_FILE: {file}: not UTF-8"),
        (b"x" * 65537, {"SLOTMQ_DEFAULT_PASS_FILE": "{file}"},
         "SLOTMQ_DEFAULT_PASS_FILE: {file}: larger than 65536 bytes"),
        (b"x", {"RABBITMQ_DEFAULT_PASS_FILE": "{file}", "RABBITMQ_DEFAULT_PASS": "hunter2"},
         "RABBITMQ_DEFAULT_PASS and RABBITMQ_DEFAULT_PASS_FILE: only one of them can be set"),
        (None, {"RABBITMQ_DEFAULT_USER": "a"}, "auth: default_user is set and default_pass is not"),
        (None, {"RABBITMQ_DEFAULT_VHOST": "v" * 256},
         "RABBITMQ_DEFAULT_VHOST: should have at most 255 characters"),
        (None, {"SLOTMQ_DEFAULT_PASSWORD": "hunter2"},
         "SLOTMQ_DEFAULT_PASSWORD: unknown setting; did you mean SLOTMQ_AUTH__DEFAULT_PASS?"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_one_line(
    content: bytes | None, environment: dict[str, str], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the variable and never a password."""
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SettingsError) as refused:
        first_user({name: value.format(file=file) for name, value in environment.items()}, monkeypatch)
    assert refused.value.problems == (problem.format(file=file),)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (
            {"RABBITMQ_NODE_PORT": "5999", "RABBITMQ_NODE_IP_ADDRESS": "::1"},
            {"server.port": 5999, "server.host": "::1"},
        ),
        ({"RABBITMQ_NODE_PORT": "5999", "SLOTMQ_SERVER__PORT": "6000"}, {"server.port": 6000}),
        ({"RABBITMQ_NODE_PORT": "", "RABBITMQ_VM_MEMORY_HIGH_WATERMARK": ""}, {"server.port": 5672}),
        ({"RABBITMQ_VM_MEMORY_HIGH_WATERMARK": "0.25"}, {"memory.alarm_ratio": 0.25, "memory.alarm_bytes": 0}),
        ({"RABBITMQ_VM_MEMORY_HIGH_WATERMARK": "1"}, {"memory.alarm_ratio": 1.0, "memory.alarm_bytes": 0}),
        ({"RABBITMQ_VM_MEMORY_HIGH_WATERMARK": "1000000"}, {"memory.alarm_bytes": 1_000_000}),
        ({"RABBITMQ_VM_MEMORY_HIGH_WATERMARK": "2GB"}, {"memory.alarm_bytes": 2_000_000_000}),
        ({"RABBITMQ_VM_MEMORY_HIGH_WATERMARK": "2GiB"}, {"memory.alarm_bytes": 2 << 30}),
        ({"RABBITMQ_VM_MEMORY_HIGH_WATERMARK": "512M"}, {"memory.alarm_bytes": 512 << 20}),
    ],
)
def test_what_a_node_is_told_is_heard(
    environment: dict[str, str], expected: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Port, address and memory limit have RabbitMQ's meaning; an empty variable is ignored."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = load()
    assert {key: settings.model_dump()[key.partition(".")[0]][key.partition(".")[2]] for key in expected} == expected


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        ("RABBITMQ_NODE_PORT", "many", "RABBITMQ_NODE_PORT: should be a whole number"),
        ("RABBITMQ_NODE_PORT", "70000", "RABBITMQ_NODE_PORT: should be less than or equal to 65535"),
        ("RABBITMQ_VM_MEMORY_HIGH_WATERMARK", "2 cups", "RABBITMQ_VM_MEMORY_HIGH_WATERMARK: should be a size"),
        ("RABBITMQ_VM_MEMORY_HIGH_WATERMARK", "1.5", "RABBITMQ_VM_MEMORY_HIGH_WATERMARK: should be less than"),
    ],
)
def test_a_value_of_a_node_that_cannot_be_names_its_variable(
    variable: str, value: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An invalid value is one line that names the variable."""
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError) as refused:
        load()
    assert refused.value.problems[0].startswith(problem)


def test_what_means_nothing_here_is_named() -> None:
    """Unsupported variables of RabbitMQ's server are listed; supported, unrelated and empty ones are not."""
    environment = {
        "RABBITMQ_ERLANG_COOKIE": "secret",
        "RABBITMQ_CONFIG_FILE": "/etc/rabbitmq/rabbitmq",
        "RABBITMQ_NODENAME": "",
        "RABBITMQ_NODE_PORT": "5673",
        "RABBITMQ_DEFAULT_USER": "a",
        "RABBITMQ_URL": "amqp://somewhere",
        "RABBITMQ_SERVICE_HOST": "10.0.0.1",
    }
    assert ignored_variables(environment) == ["RABBITMQ_CONFIG_FILE", "RABBITMQ_ERLANG_COOKIE"]
