"""The running broker: its version, alarms, vhosts, memory and descriptors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from broker import __version__
from broker.client.address import AmqpAddress
from broker.client.blocking import BlockingLink, LinkLost, LinkRefused
from broker.doctor.finding import Diagnosis, bad, fine, warn
from broker.settings import Settings
from broker.settings.change import Change, changes

MANY: Final = 0.8  # of the descriptors
ADVICE: Final = {
    "memory": "let consumers take messages, or give the broker more memory (docs/memory.md)",
    "disk": "free disk space, or lower store.disk_free_min_bytes (docs/memory.md)",
}


def broker_findings(status: Mapping[str, Any]) -> Iterator[Diagnosis]:
    """Check what `slotmq status` shows."""
    version = status["version"]
    if version != __version__:
        yield warn("broker", f"version {version} runs, and {__version__} is installed", "restart it to upgrade")
    else:
        yield fine("broker", f"version {version} runs as process {status['pid']}")
    for alarm in status["alarms"]:
        blocked = status.get("connections_blocked", 0)
        yield bad("alarm", f"low on {alarm['kind']}: publishers are blocked ({blocked} now)", ADVICE[alarm["kind"]])
    for vhost in status["vhosts_down"]:
        advice = "see the log, and docs/store.md: what damage does"
        yield bad("vhost", f"vhost '{vhost['vhost']}' is down: {vhost['reason']}", advice)
    for row in status.get("publishers_lost", ()):
        name = f"{row['connection']} ({row['connection_name']})" if row["connection_name"] else row["connection"]
        lost = f"{row['messages']:,} messages that it published to vhost '{row['vhost']}' at a limit, without confirms"
        advice = "let it use publisher confirms (docs/publishing.md), or raise the limit of its queue"
        yield warn("publisher", f"connection {name} of user '{row['user']}' lost {lost}", advice)
    used, most = status.get("descriptors"), status.get("descriptors_max")
    if used is not None and most:
        found = f"{used:,} of {most:,} file descriptors are open"
        if used > MANY * most:
            yield warn("descriptors", found, "raise the limit (LimitNOFILE), or close idle connections")
        else:
            yield fine("descriptors", found)


def settings_of(told: Mapping[str, Any], folder: Path) -> Settings:
    """Return the settings of the broker that runs on a folder, as it told them: paths absolute, secrets unknown."""
    given: dict[str, dict[str, Any]] = {section: dict(keys) for section, keys in told["settings"].items()}
    for section in ("cluster", "overlay", "zmq"):  # their URLs are secrets
        given.pop(section, None)
    tls = given.get("tls", {})
    tls |= {key: str(Path(told["folder"], tls[key])) for key in ("certfile", "keyfile", "cafile") if tls.get(key)}
    given.setdefault("server", {})["data_dir"] = folder
    return Settings(**given)


def settings_findings(running: Settings, wanted: Settings | None, file: Path | None) -> Iterator[Diagnosis]:
    """Compare the settings of the running broker with those that a file and the environment say, if one was named."""
    differ = [] if wanted is None else [change for change in changes(running, wanted) if _is_comparable(change)]
    if differ:
        names = ", ".join(f"{change.section}.{change.key}" for change in differ)
        again = "restart the broker" if any(change.needs_restart for change in differ) else "slotmq reload"
        yield warn("settings", f"the broker runs with other values than {file} has: {names}", f"{again}, or undo them")
    else:
        yield fine("settings", "those of the running broker")


def _is_comparable(change: Change) -> bool:
    """Return whether the running broker shows a setting in the same form: no secrets, and no paths that may be
    relative.
    """
    if change.section in ("cluster", "overlay", "zmq") or change.key in ("users", "default_pass", "key_password"):
        return False
    return change.key not in ("data_dir", "load_definitions", "certfile", "keyfile", "cafile")


def guest_logs_in(url: str) -> bool | None:
    """Return whether guest can log in with the password guest; None if the broker could not be asked."""
    try:
        BlockingLink(AmqpAddress.parse(url), {"connection_name": "slotmq doctor"}).close()
    except LinkRefused as refused:
        return False if refused.code else None
    except (LinkLost, ValueError):
        return None
    return True
