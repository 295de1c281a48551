"""Every setting with its unit, range, default and source; the differences after a reload, and the texts of errors."""

from broker.settings.settings import PREFIX, Routing, Server, Settings, limits, sections

__all__ = ["PREFIX", "Routing", "Server", "Settings", "limits", "sections"]
