"""The models of all settings, the changes of a reload, and the messages for errors."""

from broker.settings.settings import PREFIX, Routing, Server, Settings, limits, sections

__all__ = ["PREFIX", "Routing", "Server", "Settings", "limits", "sections"]
