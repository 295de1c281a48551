"""The command line: exit codes, and one line per error."""

import errno
import io
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

import broker
from broker.amqp.errors import NotNow
from broker.cli.broker_url import Unanswered
from broker.cli.config import documented
from broker.cli.exit_codes import unwritable
from broker.cli.main import main
from broker.cli.parser import BadUsage
from broker.cli.table import print_json
from broker.compiled import listed
from broker.core.definitions.reading import BadDefinitions
from broker.net.address import AddressTaken, CannotListen
from broker.net.tls import TlsUnusable
from broker.settings import Settings
from broker.store.damage import CorruptStore, FolderBusy, FolderUnwritable, StoreFailed
from tests.broker_process import PROJECT
from tests.deadline import DEADLINE_S
from tests.unit.cli.exit_code import code_of


@pytest.fixture(autouse=True)
def _bare(without_settings: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Provide an environment without settings and a folder for the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("broker.cli.serve.LineLogger", lambda *_arguments: None)


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """Restore the handlers of the test's process, which `serve` replaces."""
    numbers = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


class Server(ModuleType):
    """Stands in for broker.process: records its settings and fails on request."""

    def __init__(self, failure: Exception | None = None) -> None:
        super().__init__("broker.process")
        self.failure = failure
        self.settings: Settings | None = None

    def run(self, settings: Settings, _source: object, _signals: object) -> int:
        """Run the fake broker."""
        self.settings = settings
        if self.failure:
            raise self.failure
        return 0


def stand_in(monkeypatch: pytest.MonkeyPatch, failure: Exception | None = None) -> Server:
    """Replace the real server."""
    server = Server(failure)
    monkeypatch.setitem(sys.modules, "broker.process", server)
    monkeypatch.setattr(broker, "process", server, raising=False)
    return server


def test_windows_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On Windows every command prints one line and exits with 2, without an ImportError."""
    monkeypatch.setattr(sys, "platform", "win32")
    assert [main(["serve"]), main(["--version"]), main(["health"])] == [2, 2, 2]
    said = capsys.readouterr()
    assert said.err == "slotmq: SlotMQ does not run on Windows: use WSL 2 or a Linux container\n" * 3
    assert said.out == ""


def test_flags_become_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each flag of serve sets its key and overrides the file."""
    Path("s.toml").write_text("[server]\nport = 1\nbacklog = 9\n")
    server = stand_in(monkeypatch)
    argv = "serve --config s.toml --host h --port 0 --data-dir /d --no-sync --mqtt --log-format json".split()
    assert code_of(*argv) == 0
    assert server.settings is not None
    got = server.settings
    assert (got.server.host, got.server.port, got.server.data_dir, got.server.backlog) == ("h", 0, Path("/d"), 9)
    assert (got.store.sync, got.log.format, got.mqtt.enabled) == (False, "json", True)


def test_flags_not_given_leave_the_file_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flag has no default that could override the file."""
    Path("s.toml").write_text(
        "[store]\nsync = false\n[log]\nformat = 'text'\n[server]\nhost = 'h'\nport = 9\ndata_dir = 'd'\n"
    )
    server = stand_in(monkeypatch)
    assert code_of("serve", "--config", "s.toml") == 0
    assert server.settings == Settings(
        store={"sync": False}, log={"format": "text"}, server={"host": "h", "port": 9, "data_dir": "d"}
    )


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("bogus",),
        ("serve", "--bogus"),
        ("serve", "--port", "x"),
        ("serve", "--port", "70000"),
        ("serve", "--host", ""),
        ("serve", "--log-format", "xml"),
        ("serve", "--config", "missing.toml"),
        ("slots",),
        ("config",),
        ("config", "check", "missing.toml"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong usage is reported with one line on standard error."""
    assert code_of(*argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("slotmq")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), Unanswered, "f: cannot be written: No space left on device"),
        (OSError(errno.EDQUOT, "Quota exceeded"), Unanswered, "f: cannot be written: Quota exceeded"),
        (OSError(errno.EROFS, "Read-only file system"), BadUsage, "f: cannot be written: Read-only file system"),
        (OSError(), BadUsage, "f: cannot be written: OSError"),
    ],
)
def test_a_file_that_cannot_be_written_may_be_written_later(error: OSError, kind: type[Exception], said: str) -> None:
    """A command ends with exit code 1 on a full disk, with 2 for a wrong path; a reason is always given."""
    found = unwritable("f", error)
    assert (type(found), str(found)) == (kind, said)


def caused(error: Exception, number: int, kind: type[OSError] = OSError) -> Exception:
    """Return an error that was raised because of one of the operating system, by way of one of the store."""
    error.__cause__ = StoreFailed("path", "said")
    error.__cause__.__cause__ = kind(number, "said")
    return error


@pytest.mark.parametrize(
    ("failure", "code", "said"),
    [
        (FolderBusy(Path("data")), 1, "data: another broker is using this data folder"),
        (AddressTaken("::1", 80, "--port 81"), 1, "port 80 on ::1 is in use; another one: --port 81"),
        (FolderUnwritable(Path("data"), "Read-only file system"), 2, "Read-only file system"),
        (caused(FolderUnwritable(Path("data"), "said"), errno.EROFS), 2, "the data folder cannot be written: said"),
        (caused(FolderUnwritable(Path("data"), "said"), errno.EEXIST), 2, "the data folder cannot be written: said"),
        (caused(FolderUnwritable(Path("data"), "said"), errno.ENOSPC), 1, "the data folder cannot be written: said"),
        (caused(FolderUnwritable(Path("data"), "said"), errno.EDQUOT), 1, "the data folder cannot be written: said"),
        (OSError(errno.EMFILE, "Too many open files"), 1, "the broker failed: Too many open files"),
        (PermissionError(errno.EACCES, "Permission denied", "key.pem"), 2, "failed: key.pem: Permission denied"),
        (CannotListen("::1", 80, "Permission denied"), 2, "cannot listen on [::1]:80: Permission denied"),
        (caused(CannotListen("::1", 80, "said"), errno.EACCES), 2, "cannot listen on [::1]:80: said"),
        (caused(CannotListen("::1", 80, "said"), errno.EADDRNOTAVAIL), 1, "cannot listen on [::1]:80: said"),
        (caused(CannotListen("h", 80, "said"), socket.EAI_AGAIN, socket.gaierror), 1, "cannot listen on h:80: said"),
        (caused(CannotListen("h", 80, "said"), socket.EAI_NONAME, socket.gaierror), 2, "cannot listen on h:80: said"),
        (caused(TlsUnusable("no certificate"), 9, ssl.SSLError), 2, "no certificate"),
        (NotNow("cannot join the cluster: no answer in time"), 1, "cannot join the cluster: no answer in time"),
        (BadDefinitions("definitions.json: not valid JSON"), 2, "definitions.json: not valid JSON"),
        (StoreFailed("data/0.log", "Input/output error"), 1, "data/0.log: Input/output error"),
        (CorruptStore(Path("data"), 3, 77, "bad checksum"), 1, 'store.on_corruption = "quarantine"'),
    ],
)
def test_what_keeps_the_broker_from_running_is_one_line(
    failure: Exception, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A full disk, a port or a folder in use may pass: 1. What has to be changed: 2. Each is one line."""
    monkeypatch.setattr("broker.cli.serve.log", Mock())
    stand_in(monkeypatch, failure)
    assert code_of("serve") == code
    err = capsys.readouterr().err
    assert said in err
    assert err.startswith("slotmq: ")
    assert err.count("\n") == 1


def test_defect_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected exception exits with 1 and logs one event with its traceback."""
    logged: list[Any] = []
    monkeypatch.setattr("broker.cli.serve.log", SimpleNamespace(exception=logged.append))
    stand_in(monkeypatch, ZeroDivisionError())
    assert code_of("serve") == 1
    assert logged == ["server.crashed"]


def test_config_check_says_ok_or_every_problem(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A valid file is ok whatever the environment has; an invalid one gets one line per problem."""
    monkeypatch.setenv("SLOTMQ_SERVER__PORT", "wrong")
    Path("right.toml").write_text("[server]\nport = 1\n")
    Path("wrong.toml").write_text("[server]\nport = -1\nprot = 1\n")
    assert code_of("config", "check", "right.toml") == 0
    assert capsys.readouterr().out == "right.toml: ok\n"
    assert code_of("config", "check", "wrong.toml") == 2
    assert capsys.readouterr().err.count("\n") == 2


def test_a_tls_port_without_a_certificate_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check and the start refuse alike what would listen without TLS."""
    file = tmp_path / "slotmq.toml"
    file.write_text("[tls]\nport = 5671\n")
    for words in (["config", "check", str(file)], ["serve", "--config", str(file)]):
        assert main(words) == 2
        assert capsys.readouterr().err == f"slotmq: {file}: tls: certfile is missing: without it there is no TLS\n"
    file.write_text(re.sub(r"^#(?! )", "", documented(), flags=re.MULTILINE))
    assert main(["config", "check", str(file)]) == 0  # all keys at their defaults
    monkeypatch.setenv("SLOTMQ_TLS__PORT", "5671")
    assert main(["serve"]) == 2
    assert capsys.readouterr().err == "slotmq: tls: certfile is missing: without it there is no TLS\n"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """`slotmq version` and `slotmq --version` print the version, and which packages are compiled."""
    for command in ("version", "--version"):
        assert code_of(command) == 0
        assert capsys.readouterr().out == f"slotmq {broker.__version__} ({listed()})\n"


def command(*words: str, **streams: Any) -> subprocess.CompletedProcess[bytes]:
    """Run a command as a process."""
    return subprocess.run(
        [sys.executable, "-m", "broker", *words], cwd=PROJECT, check=False, timeout=DEADLINE_S, **streams
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_full_disk_is_one_line() -> None:
    """A failed write of the output is reported and exits with 1."""
    with Path("/dev/full").open("wb") as full:
        done = command("config", "example", stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (1, b"slotmq: cannot write: No space left on device\n")


@pytest.mark.parametrize("words", [("version",), ("config", "example")])
def test_reader_that_left_is_no_failure_to_tell(words: tuple[str, ...]) -> None:
    """A closed pipe ends the command with 1 and without output, also after short output."""
    read, write = os.pipe()
    os.close(read)
    try:
        done = command(*words, stdout=write, stderr=subprocess.PIPE)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


def test_interrupted_command_says_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """An interrupted command exits with 130, as shells do, without a traceback."""

    def interrupted(_words: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("broker.cli.health.health", interrupted)
    assert code_of("health") == 130
    assert capsys.readouterr() == ("", "")


def test_refusal_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Names of clients are escaped in the error, which is one line."""
    assert code_of("status", "--data-dir", "a\n\x1b[31m") == 1
    assert capsys.readouterr().err == (
        f"slotmq: no broker runs on data folder {Path.cwd()}/a\\n\\x1b[31m (another one: --data-dir D)\n"
    )


def test_name_that_is_no_utf_8_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name that is not UTF-8 is wrong usage, because it cannot be sent to the broker."""
    assert code_of("purge", "q\udcff", "--data-dir", str(tmp_path)) == 2
    assert capsys.readouterr().err == "slotmq: names and texts should be UTF-8\n"


def test_output_in_ascii_is_json_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a terminal or pipe with fewer characters, the others are escaped."""
    octets = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(octets, encoding="ascii"))
    print_json([{"name": "日本"}])
    sys.stdout.flush()
    assert json.loads(octets.getvalue()) == [{"name": "日本"}]


def test_a_command_pays_for_no_codec_that_it_does_not_use() -> None:
    """All parsers are built for every command, so codecs are imported only by the commands that need them."""
    look = "import sys; from broker.cli.main import build_parser; build_parser(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True, cwd=PROJECT)
    heavy = {"asyncio", "pamqp", "bitarray", "pydantic", "structlog", "broker.amqp", "broker.settings"}
    assert not heavy & set(done.stdout.split())
