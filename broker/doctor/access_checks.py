"""Checks of access to the broker: ports, certificates, and the user guest."""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Final

from broker.doctor.finding import Diagnosis, bad, fine, warn
from broker.net.tls import TlsUnusable, build, expiries
from broker.settings import Settings

SOON: Final = timedelta(days=30)
GUEST: Final = "guest"


def port_findings(settings: Settings) -> Iterator[Diagnosis]:
    """Check that the ports are free; for a broker that does not run."""
    for setting, host, number, is_needed in settings.ports():
        reason = _taken(host, number)
        if not reason:
            yield fine("port", f"{setting} = {number} on {host} is free")
            continue
        found = f"{setting} = {number} on {host}: {reason}"
        advice = f"stop the program that has it (ss -ltnp shows it), or change {setting}"
        yield bad("port", found, advice) if is_needed else warn("port", found, f"{advice}; the broker starts without")


def _taken(host: str, port: int) -> str:
    """Return the reason why a port cannot be used, empty if it can."""
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
    """Check the certificate of [tls], for a broker that listens on that address. *Blocking.*

    A running broker does not reveal the password of its key, which it has loaded.
    """
    tls = settings.tls
    if not tls.certfile:
        if not _is_local(host):
            found = f"off, and clients of other machines can connect to {host}"
            yield warn("tls", found, "set tls.certfile and tls.keyfile: passwords travel in clear text")
        return
    try:
        if not (runs and tls.key_password.get_secret_value()):
            build(tls)
        ends = min(expiries(tls.certfile))
    except (TlsUnusable, ValueError, OSError, ssl.SSLError) as error:
        yield bad("tls", str(error), "mend the file; the broker does not start with it")
        return
    left = ends - datetime.now(UTC)
    found = f"{tls.certfile} ends on {ends:%Y-%m-%d}"
    if left <= timedelta():
        yield bad("tls", found, "renew it: clients refuse it; the broker reads it again without a restart")
    elif left < SOON:
        yield warn("tls", f"{found}, in {left.days} days", "renew it; the broker reads it again without a restart")
    else:
        yield fine("tls", f"{found}, in {left.days} days")


def guest_finding(settings: Settings, host: str, *, has_default_password: bool | None) -> Diagnosis:
    """Judge the user guest of a broker that listens on that address.

    Shapes: `has_default_password` is None if no broker was asked.
    """
    auth = settings.auth
    if has_default_password is None:
        begins = auth.begins_with_default_user and auth.default_user == GUEST
        has_default_password = begins and auth.default_pass.get_secret_value() == GUEST
    if not has_default_password:
        return fine("guest", "no guest with the password guest")
    remote = auth.guest_anywhere or GUEST not in auth.loopback_users
    if remote and not _is_local(host):
        advice = "slotmq user set guest --password, or delete it: everybody who reaches the port is an administrator"
        return bad("guest", "guest has the password guest and may log in from other machines", advice)
    return fine("guest", "guest has the password guest, for clients on this machine only")


def anonymous_findings(settings: Settings) -> Iterator[Diagnosis]:
    """Judge whether MQTT clients of other machines need no login."""
    mqtt = settings.mqtt
    host = mqtt.host or settings.server.host
    if mqtt.enabled and mqtt.anonymous_user and not _is_local(host):
        found = f"MQTT clients of any machine connect to {host} without a login, as user '{mqtt.anonymous_user}'"
        yield warn("mqtt", found, "empty mqtt.anonymous_user, or set mqtt.host, or give the user few permissions")


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
