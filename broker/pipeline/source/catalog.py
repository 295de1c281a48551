"""The catalog of a broker's slots: on its data folder, or over its HTTP server, with one interface."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from broker.pipeline.faults import SlotDamaged, SlotMissing, SourceRefused
from broker.pipeline.options import NO_TABLE
from broker.pipeline.source.http_catalog import HttpCatalog
from broker.pipeline.source.slot_handle import SlotHandle
from broker.pipeline.source.store_catalog import StoreCatalog
from broker.slot_files.slot_file import BadSlotFile
from broker.slot_files.slot_view import SlotView, open_slot

__all__ = ["Catalog", "open_catalog", "open_handle"]


Catalog = StoreCatalog | HttpCatalog
"""The slots of one broker. Every method raises SourceRefused when it cannot answer."""


def open_catalog(path: str | None = None, url: str | None = None) -> Catalog:
    """Return the catalog of a data folder, or of the broker at an http(s) URL, without a request.

    Raises: SourceRefused when neither or both are given.
    """
    if (path is None) == (url is None):
        raise SourceRefused(
            "say where the broker is: option path (its data folder) or url (http://user:password@host:15672); "
            + NO_TABLE
        )
    if path is not None:
        return StoreCatalog(path)
    assert url is not None
    return HttpCatalog(url)


def open_handle(catalog: Catalog, slot: SlotHandle) -> SlotView:
    """Return the slot of a handle. Raises: SlotMissing, SlotDamaged when the file is not that of the handle."""
    block = catalog.fetch_slot(slot)
    try:
        view = open_slot(block, slot.crc)
    except BadSlotFile as error:
        _check_history(catalog, slot, block)
        raise SlotDamaged(f"{slot} ({catalog.location(slot)}): {error}") from None
    if wrong := slot.differs_from(view.meta):
        raise SlotDamaged(f"{slot} ({catalog.location(slot)}): {wrong}")
    return view


def _check_history(catalog: Catalog, slot: SlotHandle, block: Any) -> None:
    """Refuse a whole file that another start of the broker wrote. Raises: SlotMissing."""
    with suppress(BadSlotFile):
        meta = open_slot(block).meta
        if slot.snapshot is None and (meta.store, meta.incarnation) != (slot.store, slot.incarnation):
            where = catalog.location(slot)
            raise SlotMissing(f"{slot} is gone: {where} is of another history, as of a copy that was put back")
