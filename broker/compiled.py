"""Whether the hot modules are compiled, as in a wheel that was built with a C compiler, or interpreted."""

from __future__ import annotations

from broker.routing.engines import trie

__all__ = ["is_compiled", "kind"]


def is_compiled() -> bool:
    """Return whether the hot modules were compiled by mypyc."""
    return not str(trie.__file__).endswith(".py")


def kind() -> str:
    """Return the word that `slotmq --version` prints."""
    return "compiled" if is_compiled() else "interpreted"
