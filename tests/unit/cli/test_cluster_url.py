"""The URL of a node's cluster: its sources, and one line, without the URL, about one that cannot be used."""

from __future__ import annotations

import argparse
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from broker.cli import settings_layers
from broker.cli.broker_folder import SettingsError
from broker.cli.main import build_parser
from broker.cli.serve import flags
from broker.cli.settings_layers import load, with_cluster_url
from broker.settings import Settings
from broker.settings.change import changes

URL = "postgresql://slotmq:hush@127.0.0.1:5432/slotmq"


def parsed(*words: str) -> argparse.Namespace:
    """Return the arguments of `slotmq serve`."""
    return build_parser("serve").parse_args(["serve", *words])


def settings_of(*words: str) -> Settings:
    """Return the settings that `slotmq serve` uses with these words."""
    return with_cluster_url(load(None, flags(parsed(*words)), environment=False))


def test_url_comes_from_the_command_line() -> None:
    """--cluster and --node make the broker a node; without them it is none."""
    settings = settings_of("--cluster", URL, "--node", "a")
    assert settings.cluster.is_on
    assert settings.cluster.url.get_secret_value() == URL
    assert settings.cluster.node == "a"
    assert not settings_of().cluster.is_on


def test_url_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """SLOTMQ_CLUSTER__URL and SLOTMQ_CLUSTER__NODE do the same."""
    monkeypatch.setenv("SLOTMQ_CLUSTER__URL", URL)
    monkeypatch.setenv("SLOTMQ_CLUSTER__NODE", "b")
    settings = with_cluster_url(load())
    assert (settings.cluster.url.get_secret_value(), settings.cluster.node) == (URL, "b")


def test_url_comes_from_a_file(tmp_path: Path) -> None:
    """--cluster-file names a file that holds the URL and perhaps a line end."""
    file = tmp_path / "url"
    file.write_text(URL + "\n")
    settings = settings_of("--cluster-file", str(file), "--node", "a")
    assert settings.cluster.url.get_secret_value() == URL


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read: No such file or directory"),
        ("", "empty"),
        ("mysql://root:hush@h/d", "should be postgresql://user:password@host:port/database"),
    ],
)
def test_file_that_cannot_be_used_is_one_line(tmp_path: Path, content: str | None, reason: str) -> None:
    """The line names the file and the reason, and repeats nothing of the content."""
    file = tmp_path / "url"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SettingsError) as caught:
        settings_of("--cluster-file", str(file), "--node", "a")
    [line] = caught.value.problems
    assert str(file) in line
    assert reason in line
    assert "hush" not in line


SERVERS = (
    *(
        "h:99999/d",
        "h:0/d",
        "a,,b/d",
        ",a/d",
        ":5432/d",
        "a,b:65536/d",
        "h/d?port=-1",
        "h/d?port=%205432",
        "h/d?port=x",
    ),
    *("h/d?port=1,", "h/d?port=99999", "/d?host=a,,b", "/d?host=a:99999", "/d?host=[::1]:0", "/d?host=a:x"),
)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--cluster", "mysql://u:hush@h/d"], "--cluster: should be postgresql://user:password@host:port/database"),
        (["--cluster", "postgresql:/hush"], "--cluster: should be postgresql://user:password@host:port/database"),
        (["--cluster", "postgres://u:hush@["], "--cluster: not a URL"),
        (["--cluster", "postgres://u:hush/hush@h/d"], "--cluster: not a URL"),
        (["--cluster", "postgres://u:1/hush@h/d"], "--cluster: not a URL"),
        (["--cluster", "postgres://u:1?hush@h/d"], "--cluster: not a URL"),
        (["--cluster", "postgres://u:1#hush@h/d"], "--cluster: not a URL"),
        (["--cluster", "postgres://u:hush@h:port/d"], "--cluster: not a URL"),
        (["--cluster", "postgres://u:p@hush@h:5432/d"], "--cluster: not a URL"),
        *(
            (["--cluster", f"postgres://u:hush@{server}"], "--cluster: each host should have a name")
            for server in SERVERS
        ),
        (["--cluster", URL], "cluster: node is missing"),
        (["--node", "a"], "cluster: node is set and neither url nor url_file is"),
        (["--cluster", URL, "--cluster-file", "f", "--node", "a"], "cluster: only one of url and url_file can be set"),
        (["--cluster", URL, "--node", "a b"], "--node: should be 1 to 64 letters"),
        (["--cluster", URL, "--node", "-a"], "--node: should be 1 to 64 letters"),
        (["--cluster", URL, "--node", "a" * 65], "--node: should be 1 to 64 letters"),
    ],
)
def test_flags_that_cannot_be_used_are_one_line(words: list[str], line: str) -> None:
    """The line names the flag and never repeats the URL."""
    pairs = [f"{words[at]}={words[at + 1]}" for at in range(0, len(words), 2)]  # a name may begin with a hyphen
    with pytest.raises(SettingsError) as caught:
        settings_of(*pairs)
    [problem] = caught.value.problems
    assert problem.startswith(line)
    assert "hush" not in problem


@pytest.mark.parametrize(
    "url",
    [
        "postgres://u:p%2F@a:1,b:2/d?sslmode=require",
        "postgresql://u:p%40ss@[::1]:5432/d",
        "postgresql:///d@e?host=/run",
        "postgresql:///d?host=/run&user=me@site",
        "postgresql://%2Frun:5432/d%40e",
        "postgresql://u@h/d@e",
    ],
)
def test_what_the_driver_reads_is_taken(url: str) -> None:
    """Several servers, addresses of IPv6, sockets and options are allowed."""
    assert settings_of("--cluster", url, "--node", "a").cluster.url.get_secret_value() == url


@pytest.mark.parametrize("name", ["Slotmq", "1st", "pg_toast", "a-b", ""])
def test_schema_that_needs_quotes_is_refused(name: str) -> None:
    """A schema's name is a plain identifier, which SQL can name without quotes."""
    with pytest.raises(SettingsError, match="--schema-name: should be 1 to 63"):
        load(None, {"cluster": {"schema_name": name}}, environment=False)


def test_missing_driver_is_one_line_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without asyncpg a node says what to install; a broker by itself needs none."""

    def find(name: str) -> ModuleSpec | None:
        assert name == "asyncpg"
        return None

    monkeypatch.setattr(settings_layers, "find_spec", find)
    assert not settings_of().cluster.is_on
    with pytest.raises(SettingsError, match=r"pip install '\.\[cluster\]'"):
        settings_of("--cluster", URL, "--node", "a")


def test_url_is_neither_printed_nor_in_a_reload() -> None:
    """The URL may hold a password: settings print and reload say *** for it."""
    before, after = settings_of(), settings_of("--cluster", URL, "--node", "a")
    assert "hush" not in repr(after)
    rows = {change.key: change for change in changes(before, after)}
    assert rows["url"].new == "***"
    assert all(change.needs_restart for change in rows.values())
