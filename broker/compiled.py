"""Report which packages run compiled and which run interpreted."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

import broker

GROUPS: Final = {
    "amqp": "framing",
    "cluster": "batch",
    "core": "session/basic",
    "delivery": "worker",
    "mqtt": "packet_cutter",
    "net": "transport",
    "overlay": "leaf",
    "overlay_node": "overlay_link",
    "routing": "index",
    "slots": "slot",
    "store": "message_log",
}
"""One hot module of each package that has any. A build compiles all of a package's hot modules or none of them."""


def compiled_groups() -> list[str]:
    """Return the packages whose hot modules are compiled. Cost: about thirty file look-ups."""
    package = Path(broker.__file__).parent
    return [
        name
        for name, module in GROUPS.items()
        if any((package / name / f"{module}{suffix}").exists() for suffix in EXTENSION_SUFFIXES)
    ]


def is_compiled() -> bool:
    """Return whether the hot modules of all packages are compiled."""
    return compiled_groups() == list(GROUPS)


def build_kind() -> str:
    """Return "compiled" if all packages are compiled, else "interpreted"."""
    return "compiled" if is_compiled() else "interpreted"


def why_interpreted() -> str | None:
    """Return why the installed wheel contains only sources, or None for a compiled wheel or a checkout."""
    try:
        return Path(broker.__file__).with_name("interpreted.txt").read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def listed() -> str:
    """Return the packages by kind, as `slotmq --version` prints them, and the reason for interpreted ones if known."""
    compiled = compiled_groups()
    kinds = {"compiled": compiled, "interpreted": [name for name in GROUPS if name not in compiled]}
    parts = [f"{kind}: {', '.join(names)}" for kind, names in kinds.items() if names]
    reason = why_interpreted()
    return "; ".join([*parts, f"installed without a compilation: {reason}"] if reason else parts)
