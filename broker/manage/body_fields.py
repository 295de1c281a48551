"""Fields of a request's body as RabbitMQ's tools send them: some write numbers and booleans as texts."""

from __future__ import annotations

from typing import Any, Final

from broker.amqp.table_writer import encode_table
from broker.manage.refusal import bad_request
from broker.operations.request import Request

FLAGS: Final = {True: True, False: False, "true": True, "false": False}


def flag(fields: Request, name: str) -> bool:
    """Return a boolean, false when it was left out. Raises: HttpRefused."""
    value = fields.value(name)
    if value is None:
        return False
    if not isinstance(value, bool | str) or value not in FLAGS:
        raise bad_request(f"'{name}' should be true or false")
    return FLAGS[value]


def number(fields: Request, name: str, default: int, low: int, high: int) -> int:
    """Return an integer of a range. Raises: HttpRefused."""
    value = fields.value(name, default)
    if (
        isinstance(value, str)
        and value.isascii()
        and value.removeprefix("-").isdigit()
        and len(value) <= len(str(high))
    ):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise bad_request(f"'{name}' should be an integer from {low} to {high}")
    return value


def table(fields: Request, name: str) -> dict[str, Any]:
    """Return an argument table, empty when it was left out. Raises: HttpRefused for what AMQP cannot carry."""
    value = fields.value(name)
    if value is None or value == []:  # some languages write an empty object as a list
        return {}
    if not isinstance(value, dict):
        raise bad_request(f"'{name}' should be an object")
    try:
        encode_table(value)
    except ValueError as error:
        raise bad_request(f"'{name}': {error}") from None
    return value


def texts(fields: Request, name: str) -> list[str]:
    """Return a list of texts, which may be written as one text with commas. Raises: OperationRefused."""
    value = fields.value(name)
    if value is None:
        return []
    if isinstance(value, str):
        return [text.strip() for text in value.split(",") if text.strip()]
    return fields.texts(name)
