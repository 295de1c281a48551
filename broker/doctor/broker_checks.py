"""The running broker: its version, alarms, vhosts, memory and descriptors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from broker import __version__
from broker.doctor.finding import Diagnosis, bad, fine, warn
from broker.perf.faults import Fault
from broker.perf.peer import Address, PeerConnection

__all__ = ["broker_findings", "guest_logs_in"]

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
    used, most = status.get("descriptors"), status.get("descriptors_max")
    if used is not None and most:
        found = f"{used:,} of {most:,} file descriptors are open"
        if used > MANY * most:
            yield warn("descriptors", found, "raise the limit (LimitNOFILE), or close idle connections")
        else:
            yield fine("descriptors", found)


def guest_logs_in(url: str) -> bool | None:
    """Return whether guest can log in with the password guest; None if the broker could not be asked."""
    try:
        PeerConnection(Address.parse(url), 1).close()
    except Fault:
        return False
    except (OSError, ValueError):
        return None
    return True
