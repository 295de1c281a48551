"""The publish caches of a vhost: resolved publishes by user, because a user's rights are part of what was resolved."""

from __future__ import annotations

from broker.core.publishing.publish_entry import PublishEntry
from broker.core.publishing.publish_target import PublishTarget
from broker.routing.cache import CacheLimits, PublishCache

__all__ = ["PublishCaches"]


class PublishCaches:
    """Holds one publish cache per user."""

    __slots__ = ("_by_user", "_limits", "nothing")

    def __init__(self, limits: CacheLimits | None, nothing: PublishEntry) -> None:
        """Shapes: `nothing` is an entry whose route is not live."""
        self._limits = limits
        self.nothing = nothing
        self._by_user: dict[str, PublishCache[PublishEntry, PublishTarget]] = {}

    def of(self, user_name: str) -> PublishCache[PublishEntry, PublishTarget]:
        """Return the cache of a user."""
        cache = self._by_user.get(user_name)
        if cache is None:
            cache = self._by_user[user_name] = PublishCache(self.nothing, self._limits)
        return cache

    def drop_all(self) -> None:
        """Drop every entry, because something has changed on which entries depend besides their routes."""
        for cache in self._by_user.values():
            cache.drop_all()

    def forget_misses(self) -> None:
        """Free what only decides whether a publish is admitted."""
        for cache in self._by_user.values():
            cache.forget_misses()

    def end(self) -> None:
        """Drop the caches, because the vhost is deleted."""
        self.drop_all()
        self._by_user.clear()

    def drop(self, user_name: str) -> None:
        """Drop the entries of a user whose rights have changed."""
        cache = self._by_user.get(user_name)
        if cache is not None:
            cache.drop_all()
