"""Changes to the properties of messages that are published again; what is not named keeps its octets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from broker.amqp.content_header import FLAG_OF
from broker.amqp.header_edit import edit_header
from broker.amqp.wire import PROPERTIES_AT
from broker.pipeline.sink.property_columns import FRONT, KNOWN_MAX, NO_PROPERTIES

__all__ = ["NO_PROPERTIES", "PROPERTY_NAMES", "HeaderChanges"]

PROPERTY_NAMES: Final = tuple(FLAG_OF)


@dataclass(slots=True)
class HeaderChanges:
    """Sets headers, and drops headers and properties. Cost: one look-up for properties seen before."""

    set_headers: Mapping[str, str] = field(default_factory=dict)
    drop_headers: tuple[str, ...] = ()
    drop_properties: tuple[str, ...] = ()
    _known: dict[bytes, bytes] = field(default_factory=dict, repr=False)

    def __bool__(self) -> bool:
        return bool(self.set_headers or self.drop_headers or self.drop_properties)

    def __call__(self, properties: bytes) -> bytes:
        """Return properties, from their flags on, with the changes."""
        known = self._known.get(properties)
        if known is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            changed = edit_header(
                FRONT + properties,
                set_headers=self.set_headers,
                drop_headers=self.drop_headers,
                drop_properties=self.drop_properties,
            )
            known = self._known[properties] = changed[PROPERTIES_AT:]
        return known
