"""The pages that `mkdocs.yml` adds to docs/ from elsewhere in the project, and the links to them.

The Markdown in the project is written for a reader of the folder: `docs/store.md` links `../ARCHITECTURE.md`, and
`README.md` links `docs/store.md`. The site has one flat folder, so `on_page_markdown` rewrites those links.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any, Final

from mkdocs.structure.files import File

PROJECT: Final = Path(__file__).resolve().parent.parent
PAGES: Final = {
    "README.md": "readme.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "bench/README.md": "bench.md",
    "config/slotmq.toml": "settings-file.md",
}
"""Pages of the site that are not in docs/, by their path in the project."""
FILES: Final = (
    "LICENSE",
    "config/slotmq.service",
    "docker/compose.spark.yaml",
    "docker/compose.yaml",
    "docker/kubernetes.yaml",
    "docker/spark.Dockerfile",
)
"""Files that pages link to; the site has a copy of each in files/."""
LINK: Final = re.compile(r"(?P<before>\]\()(?P<target>[^)\s#:]+)(?P<after>(?:#[^)\s]*)?\))")
CODE: Final = re.compile(r"`[^`]*`")
FENCE: Final = re.compile(r"^ *(```|~~~)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages and files that are not in docs/."""
    for path, page in PAGES.items():
        files.append(File.generated(config, page, content=_content(path)))
    for path in FILES:
        files.append(File.generated(config, f"files/{path}", abs_src_path=str(PROJECT / path)))
    return files


def _content(path: str) -> str:
    text = (PROJECT / path).read_text(encoding="utf-8")
    return text if path.endswith(".md") else f"# The settings file\n\n```toml\n{text}```\n"


def on_page_markdown(markdown: str, *, page: Any, **_others: Any) -> str:
    """Return the Markdown with the links of the site, and with tables for Python-Markdown."""
    here = next((path for path, name in PAGES.items() if name == page.file.src_uri), f"docs/{page.file.src_uri}")
    lines, fenced = [], False
    for line in markdown.split("\n"):
        fenced ^= FENCE.match(line) is not None
        lines.append(line if fenced else _line(line, here))
    return "\n".join(lines)


def _line(line: str, here: str) -> str:
    if line.startswith("|"):  # GitHub wants a pipe in code escaped, Python-Markdown shows the backslash
        line = CODE.sub(lambda code: code[0].replace("\\|", "|"), line)
    return LINK.sub(lambda link: link["before"] + site_target(link["target"], here) + link["after"], line)


def site_target(target: str, here: str) -> str:
    """Return the link on the site for a link in the project's file `here`."""
    parts: list[str] = []
    for part in (*PurePosixPath(here).parent.parts, *PurePosixPath(target).parts):
        if part != "..":
            parts.append(part)
        elif parts:
            parts.pop()
    path = "/".join(parts)
    if path in PAGES:
        return PAGES[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"files/{path}"
