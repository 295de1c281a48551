"""`slotmq config`: check a settings file, or print an example that documents every key."""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import textwrap
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from broker.cli.settings_layers import load
from broker.settings import limits, sections
from broker.settings.fields import SettingsSection, reload_of

WIDTH: Final = 118  # characters after the #
HEAD: Final = """\
# Settings of SlotMQ: each key with its meaning, unit, limits, source and default. To change one, remove the # from its
# line. An unknown key is an error; `slotmq config check FILE` reports what is wrong in a file. Later sources override
# earlier ones: this file (slotmq serve --config FILE), the environment (SLOTMQ_SERVER__PORT=5673), flags (--port 5673).
# `slotmq reload` and SIGHUP make a running broker read the file again. "Reload" says when a changed key takes effect:
# at once, or for new connections. Any other key needs a restart.
# A size is a number of bytes, or text with a unit: "512MiB", "10GB" (B, kB, MB, GB, TB and KiB, MiB, GiB, TiB). So is a
# time a number in the unit of its key, or text: "500ms", "90s", "15m", "12h", "7d", "2w"."""


def check(arguments: argparse.Namespace) -> None:
    """Report that a file is valid. Raises: SettingsError with a line for each problem."""
    load(arguments.file, environment=False)
    print(f"{arguments.file}: ok")


def example(_arguments: argparse.Namespace) -> None:
    """Print the documented settings file."""
    print(documented(), end="")


def documented() -> str:
    """Return a settings file with every key, commented out, at its default."""
    lines = [HEAD]
    for name, model, fields in sections():
        lines += ["", f"[{name}]", *_wrapped(str(model.__doc__))]
        texts = texts_of(model)
        for key, field in fields.items():
            value = _toml(field.get_default(call_default_factory=False))
            lines += ["", *_wrapped(_meaning(field, texts[key])), f"#{key} = {value}"]
    return "\n".join(lines) + "\n"


def texts_of(model: type[SettingsSection]) -> dict[str, str]:
    """Return the text below each field of a section and of its base classes."""
    found = {}
    for base in reversed(model.__mro__[: model.__mro__.index(SettingsSection)]):
        (section,) = ast.parse(inspect.getsource(base)).body
        assert isinstance(section, ast.ClassDef)
        for field, text in pairwise(section.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                found[ast.unparse(field.target)] = str(ast.literal_eval(text.value))
    return found


def _wrapped(text: str) -> Iterator[str]:
    words = " ".join(text.split())  # up to Python 3.12, a docstring contains its indentation
    return (f"# {line}" for line in textwrap.wrap(words, WIDTH))


def _meaning(field: FieldInfo, text: str) -> str:
    """Return sentences about a key: its meaning, and what its field declares, such as limits."""
    sentences = [text.rstrip(".") + "."]
    extra = field.json_schema_extra
    if isinstance(extra, dict) and "unit" in extra:
        low, high = limits(field)
        sentences += [f"Unit: {extra['unit']}."] if extra["unit"] else []
        sentences += [f"Limits: {low} to {high}."]
        sentences += [f"Source: {extra['source']}."] if extra["source"] else []
    elif get_origin(field.annotation) is Literal:
        sentences += [f"One of: {', '.join(get_args(field.annotation))}."]
    elif field.annotation is bool:
        sentences += ["One of: true, false."]
    reload = reload_of(field)
    sentences += [f"Reload: {reload}."] if reload else []
    return " ".join(sentences)


def _toml(value: Any) -> str:
    if isinstance(value, SecretStr):
        return _toml(value.get_secret_value())
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{name} = {_toml(inner)}" for name, inner in value.items()) + " }"
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(inner) for inner in value) + "]"
    if isinstance(value, Path):
        value = str(value)
    return json.dumps(value)
