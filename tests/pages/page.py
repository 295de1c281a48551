"""The code blocks of a Markdown page, and the commands of console blocks with the expected output."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Block", "Command", "blocks", "commands", "same_output"]

FENCE = re.compile(r"^\s*```(\w*)\s*$")
NOT_RUN = re.compile(r"^\s*<!-- not run: (?P<reason>.+?) -->\s*$")
NUMBER = re.compile(r"\d[\d,.]*")
SPARK = re.compile(r"^\s*<!-- needs Spark -->\s*$")
VARIES = re.compile(r"^\s*<!-- output varies -->\s*$")
ANYTHING = "..."


@dataclass(frozen=True)
class Block:
    """One fenced block.

    `not_run` is the reason from the comment before the block, or empty if it runs. With `varies`, the output is not
    compared; with `spark`, the block needs Spark.
    """

    language: str
    text: str
    line: int
    not_run: str = ""
    varies: bool = False
    spark: bool = False


@dataclass
class Command:
    """One command of a console block with the output that the page shows."""

    text: str
    shown: list[str] = field(default_factory=list)

    @property
    def may_fail(self) -> bool:
        """Whether the page shows an error of the command line."""
        return any(line.startswith("slotmq: ") for line in self.shown)


def blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page in order."""
    language, text, start, reason = "", [""], 0, ""
    inside = varies = spark = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = FENCE.match(line)
        if fence and not inside:
            inside, language, text, start = True, fence[1], [], number
        elif fence:
            yield Block(language, "\n".join(text) + "\n", start, reason, varies, spark)
            inside = varies = spark = False
            reason = ""
        elif inside:
            text.append(line)
        elif line.strip():
            comment = NOT_RUN.match(line)
            reason = comment["reason"] if comment else ""
            varies = VARIES.match(line) is not None
            spark = SPARK.match(line) is not None


def commands(block: Block) -> list[Command]:
    """Return the commands of a console block; a line that ends in a backslash or an open quote continues."""
    found: list[Command] = []
    continues = False
    for line in block.text.splitlines():
        if continues:
            found[-1].text += f"\n{line}"
        elif line.startswith("$ "):
            found.append(Command(line[2:]))
        else:
            if line.strip():
                found[-1].shown.append(line)
            continue
        continues = not _is_whole(found[-1].text)
    return found


def _is_whole(text: str) -> bool:
    if text.endswith("\\"):
        return False
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return False
    return True


def same_output(shown: list[str], printed: list[str]) -> bool:
    """Return whether a command printed what the page shows.

    Numbers and the width of columns may differ. `...` stands for any text within a line, and alone for any lines.
    """
    if not shown:
        return not printed
    if shown[0].strip() == ANYTHING:
        return any(same_output(shown[1:], printed[start:]) for start in range(len(printed) + 1))
    return bool(printed) and _same_line(shown[0], printed[0]) and same_output(shown[1:], printed[1:])


def _same_line(shown: str, printed: str) -> bool:
    parts = [re.escape(_shape(part)) for part in shown.split(ANYTHING)]
    return re.fullmatch(".*".join(parts), _shape(printed)) is not None


def _shape(line: str) -> str:
    return NUMBER.sub("0", " ".join(line.split()))
