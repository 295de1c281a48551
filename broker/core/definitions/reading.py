"""Read a definitions document, and check each of its entries."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, TypeVar

from broker.amqp.errors import BrokerError
from broker.amqp.wire import INT_64_MAX, SHORT_STRING_MAX_BYTES
from broker.core.arguments import read_typed
from broker.core.auth.password import ARGON2, SHA256
from broker.core.definitions.document import BindingEntry, Document, ExchangeEntry, QueueEntry, Row
from broker.core.policy.policy import OPERATOR_POLICY, Policy, operator_row

Entry = TypeVar("Entry")

DEPTH_MAX: Final = 16
MD5: Final = "rabbit_password_hashing_md5"  # the algorithm of all hashes before RabbitMQ 3.6
KNOWN: Final = frozenset(
    "users vhosts permissions topic_permissions policies operator_policies parameters global_parameters exchanges "
    "queues bindings limits".split()
)
MISSING: Final = object()
INT_64_MIN: Final = -(1 << 63)


class BadDefinitions(BrokerError):
    """A refused document; the text is one line that names the entry and the reason."""


class NotStored(ValueError):
    """Definitions could not be read or stored now, or it is not known whether they were; a retry may succeed."""


class NotWritten(NotStored):
    """The disk of this broker refused a change: nothing was changed."""


class OutcomeUnknown(NotStored):
    """It is not known whether a change was stored; a retry settles it."""


class Fields:
    """Read the fields of one JSON object. Raises: BadDefinitions for an invalid value."""

    def __init__(self, value: Any, vhost: str | None) -> None:
        if not isinstance(value, dict):
            raise BadDefinitions("should be an object")
        self._fields: dict[str, Any] = value
        self._vhost = vhost

    def get(self, name: str, default: Any = None) -> Any:
        return self._fields.get(name, default)

    def kept(self, name: str) -> Any:
        """Return a field of any type, checked only by `check_depth`."""
        value = self._fields.get(name)
        check_depth(name, value)
        return value

    def rest(self, *known: str) -> dict[str, Any]:
        return {name: self.kept(name) for name in self._fields if name not in known}

    def text(self, name: str, default: Any = MISSING) -> str:
        value = self._fields.get(name, default)
        if value is MISSING:
            raise BadDefinitions(f"{name} is missing")
        if not isinstance(value, str):
            raise BadDefinitions(f"{name} should be a string")
        return value

    def name(self, name: str, default: Any = MISSING) -> str:
        """Return a string that fits in a short string."""
        value = self.text(name, default)
        if len(value.encode("utf-8", "replace")) > SHORT_STRING_MAX_BYTES:
            raise BadDefinitions(f"{name} is longer than {SHORT_STRING_MAX_BYTES} bytes")
        return value

    def vhost(self) -> str:
        """Return the vhost of the entry, or that of a document for a single vhost."""
        return self.name("vhost", MISSING if self._vhost is None else self._vhost)

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean; some programs write null for false."""
        value = self._fields.get(name, default)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise BadDefinitions(f"{name} should be true or false")
        return value

    def table(self, name: str) -> dict[str, Any]:
        """Return an object; RabbitMQ may export an empty one as [], and others as lists of pairs."""
        value = self._fields.get(name)
        if value is None:
            return {}
        if isinstance(value, list):
            if not all(isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) for pair in value):
                raise BadDefinitions(f"{name} should be an object")
            value = dict(value)
        if not isinstance(value, dict):
            raise BadDefinitions(f"{name} should be an object")
        check_depth(name, value)
        return value

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of a queue, an exchange or a binding, with AMQP's types restored."""
        return read_typed(self.table("arguments"))


IDENTITIES: Final[Mapping[str, tuple[str, ...]]] = {
    "users": ("name",),
    "vhosts": ("name",),
    "permissions": ("user", "vhost"),
    "topic_permissions": ("user", "vhost", "exchange"),
    "policies": ("name", "vhost"),
    "operator_policies": ("name", "vhost"),
    "parameters": ("name", "component", "vhost"),
    "global_parameters": ("name",),
}
"""The identity of an entry: two different entries with the same identity cannot both be applied."""


def read_document(raw: Any, vhost: str | None = None) -> Document:
    """Return the entries of a document. Entries that name no vhost belong to `vhost`, if given.

    Raises: BadDefinitions for the first invalid entry.
    """
    reading = reading_document(raw, vhost)
    while True:
        try:
            next(reading)
        except StopIteration as end:
            document: Document = end.value
            return document


def reading_document(raw: Any, vhost: str | None = None) -> Generator[None, None, Document]:
    """Read a document as `read_document` does, in steps of one entry."""
    if not isinstance(raw, dict):
        raise BadDefinitions("a definitions document is one JSON object")
    parameters = yield from _entries(raw, "parameters", vhost, _parameter)
    users = yield from _entries(raw, "users", vhost, lambda fields: _user(fields, _default_algorithm(raw)))
    vhosts = yield from _entries(raw, "vhosts", vhost, _vhost)
    permissions = yield from _entries(raw, "permissions", vhost, _permission)
    topic_permissions = yield from _entries(raw, "topic_permissions", vhost, _topic_permission)
    policies = yield from _entries(raw, "policies", vhost, lambda fields: _policy(fields, operator=False))
    operator = yield from _entries(raw, "operator_policies", vhost, lambda fields: _policy(fields, operator=True))
    global_parameters = yield from _entries(
        raw, "global_parameters", vhost, lambda fields: {"name": fields.text("name"), "value": fields.kept("value")}
    )
    exchanges = yield from _entries(raw, "exchanges", vhost, _exchange)
    queues = yield from _entries(raw, "queues", vhost, _queue)
    bindings = yield from _entries(raw, "bindings", vhost, _binding)
    return Document(
        users=tuple(users),
        vhosts=tuple(vhosts),
        permissions=tuple(permissions),
        topic_permissions=tuple(topic_permissions),
        policies=(*policies, *operator, *(row for row in parameters if row["component"] == OPERATOR_POLICY)),
        parameters=tuple(row for row in parameters if row["component"] != OPERATOR_POLICY),
        global_parameters=tuple(global_parameters),
        exchanges=tuple(exchanges),
        queues=tuple(queues),
        bindings=tuple(bindings),
        unknown=tuple(
            sorted(name for name, value in raw.items() if isinstance(value, list) and value and name not in KNOWN)
        ),
    )


def _entries(
    raw: Mapping[str, Any], part: str, vhost: str | None, read: Callable[[Fields], Entry]
) -> Generator[None, None, list[Entry]]:
    """Return the entries of one part, in steps of one entry."""
    values = raw.get(part)
    if values is None:
        return []
    if not isinstance(values, list):
        raise BadDefinitions(f"{part} should be a list")
    found: list[Entry] = []
    known: dict[tuple[str, ...], Entry] = {}
    for number, value in enumerate(values):
        try:
            entry = read(Fields(value, vhost))
        except BadDefinitions as bad:
            raise BadDefinitions(f"{part}[{number}]: {bad}") from None
        names = tuple([entry[name] for name in IDENTITIES.get(part, ())]) if isinstance(entry, dict) else ()
        if names and known.setdefault(names, entry) != entry:
            named = ", ".join(repr(name) for name in names)
            raise BadDefinitions(f"{part}[{number}]: another entry for {named} has different values")
        found.append(entry)
        yield
    return found


def _default_algorithm(raw: Mapping[str, Any]) -> str:
    version = raw.get("rabbitmq_version") or raw.get("rabbit_version")
    if not isinstance(version, str):
        return SHA256
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    old = major.isdigit() and minor.isdigit() and (int(major), int(minor)) < (3, 6)
    return MD5 if old else SHA256


def read_user(raw: Any) -> Row:
    """Check and return the entry of one user. Raises: BadDefinitions."""
    return _user(Fields(raw, None), SHA256)


def _user(fields: Fields, algorithm: str) -> Row:
    tags = fields.get("tags", "")
    if isinstance(tags, str):  # "administrator,monitoring": RabbitMQ until 3.8
        tags = [tag.strip() for tag in tags.split(",")]
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise BadDefinitions("tags should be a list of strings")
    password = fields.get("password")
    if password is not None and not isinstance(password, str):
        raise BadDefinitions("password should be a string")
    if password is None and fields.get("password_hash") is None:
        raise BadDefinitions("password_hash is missing")
    name = fields.name("name")
    if not name:
        raise BadDefinitions("name is empty")
    algorithm = fields.text("hashing_algorithm", algorithm)
    row = {
        "name": name,
        "tags": [tag for tag in tags if tag],
        "password_hash": _password_hash(fields.text("password_hash", ""), algorithm),
        "hashing_algorithm": algorithm,
        "limits": fields.table("limits"),
    }
    return row if password is None else {**row, "password": password}


def _password_hash(text: str, algorithm: str) -> str:
    """Return the hash; an exported argon2 hash is decoded from base64."""
    if algorithm != ARGON2 or not text or text.startswith("$"):
        return text
    try:
        return b64decode(text, validate=True).decode()
    except ValueError:
        raise BadDefinitions("password_hash is not base64") from None


def _vhost(fields: Fields) -> Row:
    name = fields.name("name")
    if not name:
        raise BadDefinitions("name is empty")
    return {**fields.rest("name"), "name": name}


def _permission(fields: Fields) -> Row:
    kinds = {kind: fields.text(kind) for kind in ("configure", "write", "read")}
    return {"user": fields.name("user"), "vhost": fields.vhost(), **kinds}


def _topic_permission(fields: Fields) -> Row:
    kinds = {kind: fields.text(kind) for kind in ("write", "read")}
    return {"user": fields.name("user"), "vhost": fields.vhost(), "exchange": fields.name("exchange"), **kinds}


def _policy(fields: Fields, *, operator: bool) -> Row:
    priority = fields.get("priority", 0)
    if isinstance(priority, bool) or not isinstance(priority, int | float):
        raise BadDefinitions("priority should be a number")
    vhost, name, pattern = fields.vhost(), fields.text("name"), fields.text("pattern")
    row = Policy(name, pattern, fields.text("apply-to", "all"), fields.table("definition"), priority).row(vhost)
    return operator_row(row) if operator else row


def _parameter(fields: Fields) -> Row:
    component, name, vhost = fields.text("component"), fields.text("name"), fields.vhost()
    if component != OPERATOR_POLICY:
        return {"vhost": vhost, "component": component, "name": name, "value": fields.kept("value")}
    value = fields.get("value")
    if not isinstance(value, dict):
        raise BadDefinitions("value should be an object")
    return _policy(Fields({**value, "name": name, "vhost": vhost}, vhost), operator=True)


def _exchange(fields: Fields) -> ExchangeEntry:
    return ExchangeEntry(
        vhost=fields.vhost(),
        name=fields.name("name"),
        type=fields.text("type"),
        durable=fields.flag("durable", default=True),
        auto_delete=fields.flag("auto_delete", default=False),
        internal=fields.flag("internal", default=False),
        arguments=fields.arguments(),
    )


def _queue(fields: Fields) -> QueueEntry:
    arguments = fields.arguments()
    type_ = None if fields.get("type") is None else fields.text("type")
    if type_ not in (None, "classic", "default") and "x-queue-type" not in arguments:
        arguments = {**arguments, "x-queue-type": type_}
    return QueueEntry(
        vhost=fields.vhost(),
        name=fields.name("name"),
        durable=fields.flag("durable", default=True),
        auto_delete=fields.flag("auto_delete", default=False),
        arguments=arguments,
        type=type_,
    )


def _binding(fields: Fields) -> BindingEntry:
    kind = fields.text("destination_type", "queue")
    if kind not in ("queue", "exchange"):
        raise BadDefinitions("destination_type should be queue or exchange")
    return BindingEntry(
        vhost=fields.vhost(),
        source=fields.name("source"),
        destination=fields.name("destination"),
        to_exchange=kind == "exchange",
        routing_key=fields.name("routing_key", ""),
        arguments=fields.arguments(),
    )


def check_depth(name: str, value: Any, levels: int = DEPTH_MAX) -> None:
    """Refuse integers of more than 64 bits, and values nested too deeply. Raises: BadDefinitions."""
    if isinstance(value, int) and not INT_64_MIN <= value <= INT_64_MAX:
        raise BadDefinitions(f"{name} holds a number of more than 64 bits")
    if isinstance(value, (dict, list)):
        if not levels:
            raise BadDefinitions(f"{name} is nested deeper than {DEPTH_MAX} levels")
        for inner in value.values() if isinstance(value, dict) else value:
            check_depth(name, inner, levels - 1)
