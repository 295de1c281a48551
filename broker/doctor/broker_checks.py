"""Checks of a broker: its ports, certificate, logins, status and settings."""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from broker import __version__
from broker.client.address import AmqpAddress
from broker.client.blocking import BlockingLink, LinkLost, LinkRefused
from broker.doctor.finding import Diagnosis, bad, fine, warn
from broker.net.tls import TlsUnusable, build, expiries
from broker.settings import Settings
from broker.settings.change import Change, changes

RENEW_BEFORE: Final = timedelta(days=30)
GUEST: Final = "guest"
DESCRIPTORS_WARN_RATIO: Final = 0.8
ADVICE: Final = {
    "memory": "let consumers take messages, or give the broker more memory (docs/memory.md)",
    "disk": "free disk space, or lower store.disk_free_min_bytes (docs/memory.md)",
}


def port_findings(settings: Settings) -> Iterator[Diagnosis]:
    """Check that the ports are free, for a broker that is not running."""
    for setting, host, number, is_needed in settings.ports():
        reason = _taken(host, number)
        if not reason:
            yield fine("port", f"{setting} = {number} on {host} is free")
            continue
        found = f"{setting} = {number} on {host}: {reason}"
        advice = f"stop the program that uses it (ss -ltnp shows it), or change {setting}"
        optional = f"{advice}; the broker starts without it"
        yield bad("port", found, advice) if is_needed else warn("port", found, optional)


def _taken(host: str, port: int) -> str:
    """Return the reason why a port cannot be used, or an empty string if it can."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _name, address in found:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(address)
                probe.listen(1)
    except OSError as error:
        return "" if error.errno == errno.EAFNOSUPPORT else error.strerror or str(error)
    return ""


def certificate_findings(settings: Settings, host: str, *, runs: bool = False) -> Iterator[Diagnosis]:
    """Check the certificate of [tls], for a broker that listens on `host`. *Blocking.*

    The encrypted key of a running broker is not checked, because the broker does not report the password.
    """
    tls = settings.tls
    if not tls.certfile:
        if not _is_local(host):
            found = f"off, and clients on other machines can connect to {host}"
            yield warn("tls", found, "set tls.certfile and tls.keyfile: passwords travel in clear text")
        return
    try:
        if not (runs and tls.key_password.get_secret_value()):
            build(tls)
        ends = min(expiries(tls.certfile))
    except (TlsUnusable, ValueError, OSError, ssl.SSLError) as error:
        yield bad("tls", str(error), "correct the file; the broker does not start with it")
        return
    remaining = ends - datetime.now(UTC)
    found = f"{tls.certfile} expires on {ends:%Y-%m-%d}"
    if remaining <= timedelta():
        yield bad("tls", found, "renew it: clients refuse it; the broker reloads it without a restart")
    elif remaining < RENEW_BEFORE:
        yield warn("tls", f"{found}, in {remaining.days} days", "renew it; the broker reloads it without a restart")
    else:
        yield fine("tls", f"{found}, in {remaining.days} days")


def guest_finding(settings: Settings, host: str, *, has_default_password: bool | None) -> Diagnosis:
    """Check the user guest of a broker that listens on `host`.

    Shapes: `has_default_password` is None if no running broker answered; then the settings decide.
    """
    auth = settings.auth
    if has_default_password is None:
        is_created = auth.begins_with_default_user and auth.default_user == GUEST
        has_default_password = is_created and auth.default_pass.get_secret_value() == GUEST
    if not has_default_password:
        return fine("guest", "no guest with the password guest")
    remote = auth.guest_anywhere or GUEST not in auth.loopback_users
    if remote and not _is_local(host):
        advice = "slotmq user set guest --password, or delete it: everybody who can reach the port is an administrator"
        return bad("guest", "guest has the password guest and can log in from other machines", advice)
    return fine("guest", "guest has the password guest, for clients on this machine only")


def anonymous_findings(settings: Settings) -> Iterator[Diagnosis]:
    """Warn if MQTT clients on other machines can connect without a login."""
    mqtt = settings.mqtt
    host = mqtt.host or settings.server.host
    if mqtt.enabled and mqtt.anonymous_user and not _is_local(host):
        found = f"MQTT clients on any machine can connect to {host} without a login, as user '{mqtt.anonymous_user}'"
        yield warn("mqtt", found, "empty mqtt.anonymous_user, or set mqtt.host, or give the user few permissions")


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def broker_findings(status: Mapping[str, Any]) -> Iterator[Diagnosis]:
    """Check the output of `slotmq status`."""
    version = status["version"]
    if version != __version__:
        yield warn("broker", f"version {version} is running, and {__version__} is installed", "restart it to upgrade")
    else:
        yield fine("broker", f"version {version} runs as process {status['pid']}")
    for alarm in status["alarms"]:
        blocked = status.get("connections_blocked", 0)
        yield bad("alarm", f"low on {alarm['kind']}: publishers are blocked ({blocked} now)", ADVICE[alarm["kind"]])
    for vhost in status["vhosts_down"]:
        advice = "see the log, and docs/store.md about damage"
        yield bad("vhost", f"vhost '{vhost['vhost']}' is down: {vhost['reason']}", advice)
    for row in status.get("publishers_lost", ()):
        name = f"{row['connection']} ({row['connection_name']})" if row["connection_name"] else row["connection"]
        lost = f"{row['messages']:,} messages that it published to vhost '{row['vhost']}' at a limit, without confirms"
        advice = "let it use publisher confirms (docs/publishing.md), or raise the limit of its queue"
        yield warn("publisher", f"connection {name} of user '{row['user']}' lost {lost}", advice)
    used, limit = status.get("descriptors"), status.get("descriptors_max")
    if used is not None and limit:
        found = f"{used:,} of {limit:,} file descriptors are open"
        if used > DESCRIPTORS_WARN_RATIO * limit:
            yield warn("descriptors", found, "raise the limit (LimitNOFILE), or close idle connections")
        else:
            yield fine("descriptors", found)


def settings_of(report: Mapping[str, Any], folder: Path) -> Settings:
    """Return the settings that the broker of a data folder has reported, without the sections whose URLs are secret."""
    given: dict[str, dict[str, Any]] = {section: dict(keys) for section, keys in report["settings"].items()}
    for section in ("cluster", "overlay", "zmq"):  # the reported URLs are redacted
        given.pop(section, None)
    tls = given.get("tls", {})
    tls |= {key: str(Path(report["folder"], tls[key])) for key in ("certfile", "keyfile", "cafile") if tls.get(key)}
    given.setdefault("server", {})["data_dir"] = folder
    return Settings(**given)


def settings_findings(running: Settings, wanted: Settings | None, file: Path | None) -> Iterator[Diagnosis]:
    """Compare the settings of the running broker with the `wanted` ones of a file and the environment, if given."""
    differ = [] if wanted is None else [change for change in changes(running, wanted) if _is_comparable(change)]
    if differ:
        names = ", ".join(f"{change.section}.{change.key}" for change in differ)
        remedy = "restart the broker" if any(change.needs_restart for change in differ) else "slotmq reload"
        yield warn("settings", f"the broker runs with other values than {file} has: {names}", f"{remedy}, or undo them")
    else:
        yield fine("settings", "those of the running broker")


def _is_comparable(change: Change) -> bool:
    """Return whether a reported setting can be compared: secrets are redacted, and paths can be relative."""
    if change.section in ("cluster", "overlay", "zmq") or change.key in ("users", "default_pass", "key_password"):
        return False
    return change.key not in ("data_dir", "load_definitions", "certfile", "keyfile", "cafile")


def guest_logs_in(url: str) -> bool | None:
    """Return whether guest can log in with the password guest, or None if the broker did not answer."""
    try:
        BlockingLink(AmqpAddress.parse(url), {"connection_name": "slotmq doctor"}).close()
    except LinkRefused as refused:
        return False if refused.code else None
    except (LinkLost, ValueError):
        return None
    return True
