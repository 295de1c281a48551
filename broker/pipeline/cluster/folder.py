"""The folder of a Spark cluster of this machine's own: its settings with the secret, its processes, its logs."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from broker.pipeline.job import JobFailed
from broker.pipeline.spark.user_folder import cache_folder

__all__ = ["ClusterFolder", "ClusterState", "Daemon", "cluster_environment", "default_folder"]

FORMAT: Final = 1
PRIVATE_FILE: Final = 0o600
PRIVATE_FOLDER: Final = 0o700
LOOPBACK: Final = "127."


@dataclass(frozen=True, slots=True)
class Daemon:
    """One process of the cluster. Shapes: `role` is "master" or "worker N"."""

    role: str
    pid: int
    log: str


@dataclass(frozen=True, slots=True)
class ClusterState:
    """What is known of a cluster that was started. Shapes: `mark` stands in the command line of its processes."""

    mark: str
    host: str
    workers: int
    cores: int
    memory: str
    started_ms: int
    master: str = ""
    ui: str = ""
    daemons: tuple[Daemon, ...] = field(default=())

    def with_daemon(self, daemon: Daemon) -> ClusterState:
        """Return the state with one more process."""
        return replace(self, daemons=(*self.daemons, daemon))

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> ClusterState:
        """Return the state that was written. Raises: KeyError, TypeError."""
        known = dict(fields)
        if known.pop("format") != FORMAT:
            raise KeyError("format")
        known["daemons"] = tuple(Daemon(**each) for each in known["daemons"])
        return cls(**known)


class ClusterFolder:
    """Keeps one cluster's files. Invariant: nobody but its owner can read the secret, from the first moment on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.conf = path / "conf"
        self.logs = path / "logs"
        self.work = path / "work"
        self._state = path / "state.json"

    def state(self) -> ClusterState | None:
        """Return what is known, None when no cluster was started here. Raises: JobFailed."""
        try:
            return ClusterState.from_json(json.loads(self._state.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise JobFailed(f"{self._state} cannot be read: {error!r}; move it away when no cluster runs") from None

    def prepare(self, host: str) -> None:
        """Make the folder and write the settings of a new cluster, with a new secret. Raises: JobFailed."""
        try:
            for folder in (self.path, self.conf, self.logs, self.work):
                folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
            self.path.chmod(PRIVATE_FOLDER)  # it may have been there
            lines = "".join(f"{name} {value}\n" for name, value in settings(host, secrets.token_hex(32)).items())
            self._write(self.conf / "spark-defaults.conf", lines)
        except OSError as error:
            raise JobFailed(f"{error.filename or self.path}: {error.strerror}") from None

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep others from starting or stopping a cluster here meanwhile. Raises: JobFailed when somebody does."""
        try:
            self.path.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
            descriptor = os.open(self.path / "lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        except OSError as error:
            raise JobFailed(f"{error.filename or self.path}: {error.strerror}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise JobFailed(f"somebody starts or stops the cluster in {self.path} right now") from None
        finally:
            os.close(descriptor)

    def keep(self, state: ClusterState) -> None:
        """Write down what is known. Raises: OSError."""
        self._write(self._state, json.dumps({"format": FORMAT, **asdict(state)}, indent=2) + "\n")

    def forget(self) -> None:
        """Remove the state, the secret and what the workers left; the logs stay."""
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.rmtree(self.conf, ignore_errors=True)
        self._state.unlink(missing_ok=True)

    @staticmethod
    def _write(path: Path, text: str) -> None:
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        fresh.replace(path)


def settings(host: str, secret: str) -> dict[str, str]:
    """Return what master, workers and drivers have in common."""
    local = host.startswith(LOOPBACK)
    return {
        "spark.authenticate": "true",
        "spark.authenticate.secret": secret,
        "spark.network.crypto.enabled": "false" if local else "true",
        "spark.master.rest.enabled": "false",  # it asks nobody for a secret
        "spark.ui.killEnabled": "false",  # neither does the web page
        "spark.master.ui.decommission.allow.mode": "DENY",
        "spark.worker.cleanup.enabled": "true",
        **({"spark.driver.host": host, "spark.driver.bindAddress": host} if local else {}),
    }


def default_folder(environment: Mapping[str, str]) -> Path:
    """Return where the user's cluster is, when no other place is named."""
    return cache_folder(environment) / "cluster"


def cluster_environment(master: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which a driver may use the master of the user's own cluster; none for another one.

    The secret stays in its file: in a command line everybody could read it.
    """
    if not master.startswith("spark://") or environment.get("SPARK_CONF_DIR"):
        return {}
    folder = ClusterFolder(default_folder(environment))
    state = folder.state()
    return {"SPARK_CONF_DIR": str(folder.conf)} if state is not None and state.master == master else {}
