"""The examples in the README and in docs/ work when a reader copies them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker_process import PROJECT
from tests.pages.clone import clone, files
from tests.pages.page import Block, blocks, commands, same_output
from tests.pages.page_run import PageRun

SPARK = "pipeline-*.md"
"""Pages whose blocks need Spark; tests/pipeline runs them."""
START = ("README.md", "docs/index.md")
"""Pages that begin with the installation; tests/pipeline runs them with Spark, too."""
PAGES = [
    page
    for page in (PROJECT / "README.md", *sorted((PROJECT / "docs").glob("*.md")))
    if not page.match(SPARK)
    and str(page.relative_to(PROJECT)) not in START
    and any(block.language in ("console", "python") and not block.not_run for block in blocks(page))
]


@pytest.fixture
def page_run(tmp_path: Path) -> Iterator[PageRun]:
    """Return a folder and a broker for one page."""
    run = PageRun(tmp_path)
    yield run
    run.close()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run(page: Path, page_run: PageRun) -> None:
    """Every console and Python block runs in order, and prints what the page shows, but for numbers."""
    assert page_run.run(page)


@pytest.mark.parametrize("name", START)
def test_the_first_pages_run_in_a_fresh_clone(name: str, tmp_path: Path) -> None:
    """One line installs the broker with its page, the same line on both; what follows runs with what it installed."""
    run = PageRun(clone(tmp_path), in_clone=True)
    try:
        assert run.run(tmp_path / name) > 3
        assert "/.venv/lib/" in run.broker_package()
    finally:
        run.close()
    pages = [(PROJECT / page).read_text().splitlines() for page in START]
    line, other = (next(text for text in lines if "-m venv" in text) for lines in pages)
    assert line == other and "'.[manage]'" in line


def test_nothing_is_installed_by_a_name_that_a_stranger_could_own() -> None:
    """SlotMQ is on no package index: its name there is anybody's, so no page and no message tells to install it."""
    by_name = re.compile(r"pip install [^`\n]*(?<![/\w.-])slotmq(?![\w/*-])(?! @)")
    names = [name for name in files() if name.endswith((".md", ".py", ".toml", ".yml", ".yaml"))]
    texts = {name: (PROJECT / name).read_text(errors="replace") for name in names if name != "CHANGELOG.md"}
    found = [name for name, text in texts.items() if by_name.search(text)]
    assert found == ["tests/pages/test_pages.py"]  # the two below
    assert by_name.search("pip install 'slotmq[manage]'") and by_name.search("pip install -U slotmq")
    assert not by_name.search("pip install dist/slotmq-0.2.whl") and not by_name.search('pip install ".[spark]"')


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("slotmq list queues --colums name", ""),
        ("slotmq list queues --columns name", "surname\n"),
        ("slotmq declare queue q", "exchange 'q' declared\n"),
        ("slotmq declare queue q --type stream", "queue 'q' declared\n"),
    ],
)
def test_a_wrong_command_or_output_fails(tmp_path: Path, page_run: PageRun, command: str, shown: str) -> None:
    """A flag that does not exist, a refusal that the page does not show, and other words in the output are told."""
    page = tmp_path / "page.md"
    page.write_text(f"# A page\n\n```console\n$ {command}\n{shown}```\n")
    with pytest.raises(AssertionError, match=r"page\.md:3"):
        page_run.run(page)


def test_a_wrong_serve_fails(tmp_path: Path, page_run: PageRun) -> None:
    """The broker of a page is started by the page's own command."""
    page = tmp_path / "page.md"
    page.write_text("```console\n$ slotmq serve --data-directory data\n```\n")
    with pytest.raises(AssertionError, match="unrecognized arguments"):
        page_run.run(page)


def test_a_block_that_is_not_run_says_why(tmp_path: Path, page_run: PageRun) -> None:
    """Only the comment right before a block keeps it from being run, and only with a reason."""
    page = tmp_path / "page.md"
    page.write_text("<!-- not run: needs a network -->\n```console\n$ false\n```\n\ntext\n\n```python\n1 / 0\n```\n")
    first, second = blocks(page)
    assert (first.not_run, second.not_run) == ("needs a network", "")
    with pytest.raises(ZeroDivisionError):
        page_run.run(page)


def test_commands_go_on_over_lines() -> None:
    """A backslash and an open quote join lines; what follows is output; an apostrophe in a comment opens nothing."""
    text = "$ a \\\n  b  # it's fine\n$ c '{\n}' d\nout\n"
    first, second = commands(Block("console", text, 1))
    assert (first.text, first.shown) == ("a \\\n  b  # it's fine", [])
    assert (second.text, second.shown) == ("c '{\n}' d", ["out"])


def test_output_is_compared_but_for_numbers_and_width() -> None:
    """Dots stand for any text or lines."""
    assert same_output(["name  messages", "late  4"], ["name          messages", "late          1,200"])
    assert same_output(["a ... c", "...", "z"], ["a b c", "x", "y", "z"])
    assert not same_output(["name"], ["name", "late"])
    assert not same_output(["names"], ["name"])
