"""Every setting with its unit, range, default and source; what differs after a reload, and what is wrong in words."""

from broker.settings.settings import PREFIX, Routing, Server, Settings, limits, sections

__all__ = ["PREFIX", "Routing", "Server", "Settings", "limits", "sections"]
