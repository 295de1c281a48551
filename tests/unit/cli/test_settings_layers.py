"""The layers of settings: their precedence, the errors for wrong ones, and the data folder of a command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.cli.broker_folder import DEFAULT_FOLDER, FILE_BYTES_MAX, VARIABLE, SettingsError, broker_folder
from broker.cli.settings_layers import load

pytestmark = pytest.mark.usefixtures("without_settings")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the path of the test's settings file."""
    return tmp_path / "slotmq.toml"


def problems(file: Path | None = None, flags: Any = None) -> tuple[str, ...]:
    """Return the errors of invalid settings."""
    with pytest.raises(SettingsError) as caught:
        load(file, flags)
    return caught.value.problems


def test_later_layer_wins(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each key, a flag overrides the environment, which overrides the file, which overrides the default."""
    file.write_text("[server]\nport = 1\nhost = 'file'\nbacklog = 7\n")
    monkeypatch.setenv("SLOTMQ_SERVER__PORT", "2")
    monkeypatch.setenv("slotmq_server__host", "environment")
    server = load(file, {"server": {"port": 3}}).server
    assert (server.port, server.host, server.backlog, server.connections_max) == (3, "environment", 7, 10_000)


def test_unknown_key_in_file_names_the_nearest(file: Path) -> None:
    """A misspelt key, a misspelt section and a key in a wrong section are reported with the nearest match."""
    file.write_text("[server]\nprot = 1\n[flwo]\n[log]\nheartbeat_s = 3\n")
    assert set(problems(file)) == {
        f"{file}: server.prot: unknown key; did you mean server.port?",
        f"{file}: flwo: unknown key; did you mean flow?",
        f"{file}: log.heartbeat_s: unknown key; did you mean amqp.heartbeat_s?",
    }


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("SLOTMQ_SERVER__PROT", "SLOTMQ_SERVER__PORT"),
        ("SLOTMQ_SERVER_PORT", "SLOTMQ_SERVER__PORT"),
        ("SLOTMQ_STORE__SYNCH", "SLOTMQ_STORE__SYNC"),
        ("SLOTMQ_PORT", "SLOTMQ_SERVER__PORT"),
        ("SLOTMQ_AMQP_PORT", "SLOTMQ_SERVER__PORT"),
        ("SLOTMQ_AMQP__PORT", "SLOTMQ_SERVER__PORT"),
        ("SLOTMQ_SERVR__PORT", "SLOTMQ_SERVER__PORT"),
        ("SLOTMQ_TLSS__PORT", "SLOTMQ_TLS__PORT"),
        ("SLOTMQ_HOST", "SLOTMQ_SERVER__HOST"),
        ("SLOTMQ_DATADIR", "SLOTMQ_SERVER__DATA_DIR"),
        ("SLOTMQ_LOGLEVEL", "SLOTMQ_LOG__LEVEL"),
    ],
)
def test_unknown_variable_names_the_nearest(name: str, meant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown variable with our prefix is an error, with the nearest match."""
    monkeypatch.setenv(name, "1")
    assert problems() == (f"{name}: unknown setting; did you mean {meant}?",)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLOTMQ_PORT", "tcp://10.0.0.1:5672"),
        ("SLOTMQ_PORT_5672_TCP_ADDR", "10.0.0.1"),
        ("SLOTMQ_SERVICE_HOST", "10.0.0.1"),
        ("SLOTMQ_SERVER_SERVICE_PORT_AMQP", "5672"),
        ("SLOTMQ_SERVER__SERVICE_HOST", "10.0.0.1"),
    ],
)
def test_service_links_of_kubernetes_are_no_settings(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Kubernetes service named slotmq adds variables to every pod, which are ignored."""
    monkeypatch.setenv(name, value)
    assert load().server.port == 5672


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[server]\nport = 70000", "server.port: should be less than or equal to 65535 (0 to 65535)"),
        ("[amqp]\nheartbeat_s = -1", "amqp.heartbeat_s: should be greater than or equal to 0 (0 to 65535 s)"),
        ("[log]\nlevel = 'loud'", "log.level: should be 'debug', 'info', 'warning' or 'error'"),
        ("[server]\nhost = ''", "server.host: should not be empty"),
        ("server = 3", "server: should be a table"),
    ],
)  # fmt: skip
def test_wrong_value_is_one_line(file: Path, text: str, said: str) -> None:
    """A wrong value is one line with file, key and limits."""
    file.write_text(text)
    (problem,) = problems(file)
    assert problem.startswith(f"{file}: {said}")
    assert "\n" not in problem


FAULTS = """
[http]
enabled = "maybe"
[server]
port = "x"
control_socket = "perhaps"
[auth]
loopback_users = "guest"
mechanisms = ["X"]
[[overlay.node]]
broker = "a"
node = "n"
[[overlay.node.neighbours]]
node = "m"
brokr = "b"
"""


def test_every_kind_of_fault_is_a_line_without_the_words_of_the_library(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alternatives are one line, what is missing names the file with its table, entries of lists are counted from 1."""
    file.write_text(FAULTS)
    assert list(problems(file)) == [
        f"{file}: server.port: should be a whole number (0 to 65535)",
        f"{file}: server.control_socket: should be true or false",
        f"{file}: auth.loopback_users: should be a list",
        f"{file}: auth.mechanisms[#1]: should be 'PLAIN', 'AMQPLAIN' or 'EXTERNAL'",
        f"{file}: http.enabled: should be 'auto', true or false",
        f"{file}: overlay.node[#1].neighbours[#1].broker: is missing",
        f"{file}: overlay.node[#1].neighbours[#1].brokr: unknown key; did you mean broker?",
    ]
    monkeypatch.setenv("SLOTMQ_OVERLAY__NODE", '[{"node": "x"}]')
    assert "SLOTMQ_OVERLAY__NODE[#1].broker: is missing" in problems(file)


def test_problem_names_the_layer_that_has_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the layer whose value would apply."""
    file.write_text("[server]\nport = 70000")
    monkeypatch.setenv("SLOTMQ_SERVER__PORT", "seventy")
    assert problems(file)[0].startswith("SLOTMQ_SERVER__PORT: should be a whole number")
    assert problems(file, {"server": {"port": -1}})[0].startswith("--port: should be greater")


def test_users_come_by_name_or_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """A password is taken literally; a name keeps its letter case only in JSON."""
    monkeypatch.setenv("SLOTMQ_AUTH__USERS__ALICE", "1234")
    assert {name: secret.get_secret_value() for name, secret in load().auth.users.items()} == {"alice": "1234"}
    monkeypatch.delenv("SLOTMQ_AUTH__USERS__ALICE")
    monkeypatch.setenv("SLOTMQ_AUTH__USERS", '{"Bob": "x"}')
    assert list(load().auth.users) == ["Bob"]


def test_one_user_comes_over_the_json_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single user overrides the JSON of all users, in any order of the environment."""
    monkeypatch.setenv("SLOTMQ_AUTH__USERS__ALICE", "late")
    monkeypatch.setenv("SLOTMQ_AUTH__USERS", '{"alice": "early", "bob": "x"}')
    monkeypatch.setenv("SLOTMQ_AUTH__LOOPBACK_USERS", '["bob"]')
    auth = load().auth
    assert {name: secret.get_secret_value() for name, secret in auth.users.items()} == {"alice": "late", "bob": "x"}
    assert auth.loopback_users == ("bob",)


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        ({"SLOTMQ_AUTH__USERS__a__b": "x"}, "SLOTMQ_AUTH__USERS__A: should be text"),
        ({"SLOTMQ_AUTH__USERS": "[1]"}, "SLOTMQ_AUTH__USERS: should be a table"),
        ({"SLOTMQ_AUTH__USERS": "[1]", "SLOTMQ_AUTH__USERS__a": "x"}, "SLOTMQ_AUTH__USERS: should be a table"),
    ],
)
def test_users_that_are_no_table_of_passwords_are_refused(
    environment: dict[str, str], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is one line that names the variable."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert problems() == (line,)


@pytest.mark.parametrize("name", ["SLOTMQ_AUTH__USERS", "SLOTMQ_AUTH__LOOPBACK_USERS"])
def test_broken_json_is_told_without_its_value(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Invalid JSON is reported by the variable's name, without its value, which may contain a password."""
    monkeypatch.setenv(name, "hunter2")
    assert problems() == (f"{name}: not valid JSON",)


def test_problems_never_repeat_a_value(file: Path) -> None:
    """A password of a wrong type is not quoted."""
    file.write_text("[auth.users]\nalice = ['hunter2']")
    assert "hunter2" not in str(problems(file))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[server\n", "not valid TOML: "),
        (b"\xff\xfe", "not valid TOML: "),
        (b"#" * (FILE_BYTES_MAX + 1), f"larger than {FILE_BYTES_MAX} bytes"),
    ],
)
def test_file_that_is_no_toml_is_one_line(file: Path, content: bytes, said: str) -> None:
    """Invalid TOML is reported with the file and the position."""
    file.write_bytes(content)
    (problem,) = problems(file)
    assert problem.startswith(f"{file}: {said}")


def test_missing_file_is_one_line(tmp_path: Path) -> None:
    """A missing file, or a folder, is reported with the system's reason."""
    assert problems(tmp_path / "none.toml") == (f"{tmp_path}/none.toml: cannot be read: No such file or directory",)
    assert problems(tmp_path) == (f"{tmp_path}: cannot be read: Is a directory",)


def test_sections_that_do_not_go_together_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names both keys; a section that lacks a key says which one."""
    monkeypatch.setenv("SLOTMQ_TLS__CERTFILE", "cert.pem")
    monkeypatch.setenv("SLOTMQ_TLS__PORT", "5672")
    with pytest.raises(SettingsError) as refused:
        load()
    assert refused.value.problems == ("tls.port and server.port are both 5672",)
    monkeypatch.setenv("SLOTMQ_TLS__VERIFY", "peer")
    with pytest.raises(SettingsError) as refused:
        load()
    assert refused.value.problems == ('tls: verify = "peer" needs cafile: without it no client is trusted',)


def test_default_is_that_of_the_settings() -> None:
    """A broker that was started without settings is found without settings."""
    assert Path(broker_folder(None, None)) == load().server.data_dir == Path(DEFAULT_FOLDER)


def test_layers_win_as_they_do_for_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is overridden by the environment, and that by the flag; other keys of the file do not matter."""
    file = tmp_path / "s.toml"
    file.write_text("[server]\ndata_dir = 'file'\nfrom_a_later_version = 1\n")
    assert broker_folder(None, file) == "file"
    monkeypatch.setenv(VARIABLE.lower(), "environment")
    assert broker_folder(None, file) == "environment"
    assert broker_folder("flag", file) == "flag"


@pytest.mark.parametrize("content", ["", "[server]\n", "server = 3\n"])
def test_file_without_the_setting_leaves_the_default(tmp_path: Path, content: str) -> None:
    """A file without the key leaves the default."""
    file = tmp_path / "s.toml"
    file.write_text(content)
    assert broker_folder(None, file) == DEFAULT_FOLDER
