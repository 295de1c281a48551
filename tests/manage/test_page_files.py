"""The files of the web page: what they may contain, and how they are served."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from broker.manage.page import files
from broker.server import BrokerServer
from tests.http_talk import ask

FOLDER = Path(files.__file__).parent / "web"
SCRIPTS = sorted(FOLDER.rglob("*.js"))
# what turns text into markup or code; `.style =` and style attributes are refused by the page's policy
FORBIDDEN = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|srcdoc|setAttribute\(\"on"
    r"|createContextualFragment|javascript:|import\("
)
ADDRESS = re.compile(r"//[\w-]+(?:\.[\w-]+)+")
IMPORT = re.compile(r'from "([^"]+)"')


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.relative_to(FOLDER).as_posix())
def test_a_script_makes_no_markup_and_calls_no_other_host(script: Path) -> None:
    """A script builds elements and text nodes only, imports files that exist, and names no host."""
    text = script.read_text()
    assert FORBIDDEN.findall(text) == []
    assert [found for found in ADDRESS.findall(text) if found != "//www.w3.org"] == []
    assert [name for name in IMPORT.findall(text) if not (script.parent / name).is_file()] == []
    assert len(text.splitlines()) <= 400


def test_the_page_links_every_style_and_only_files_that_exist() -> None:
    """The page names each style sheet, and its scripts are files."""
    text = (FOLDER / "index.html").read_text()
    named = set(re.findall(r'(?:href|src)="/page/([^"]+)"', text))
    assert [name for name in named if not (FOLDER / name).is_file()] == []
    assert {f"style/{file.name}" for file in (FOLDER / "style").iterdir()} <= named
    assert "<style" not in text and "style=" not in text and "onload" not in text


def test_every_style_and_every_exported_name_is_used() -> None:
    """Scripts and the page name each class of the styles, or its beginning; other scripts import what one exports."""
    texts = {file: file.read_text() for file in FOLDER.rglob("*.*") if file.suffix in (".js", ".html", ".css")}
    scripts = "\n".join(text for file, text in texts.items() if file.suffix != ".css")
    composed = "|".join(map(re.escape, set(re.findall(r"(?<![\w-])(\w+-?)\$\{", scripts))))  # `rank-${column.rank}`
    sheets = re.sub(
        r"/\*.*?\*/", "", "\n".join(text for file, text in texts.items() if file.suffix == ".css"), flags=re.DOTALL
    )
    classes = {
        name for name in re.findall(r"\.(-?[A-Za-z_][\w-]*)(?=[^{}]*\{)", sheets) if not re.match(composed, name)
    }
    assert [name for name in classes if not re.search(rf"(?<![\w-]){name}(?![\w-])", scripts)] == []
    for file in SCRIPTS:
        others = "\n".join(text for other, text in texts.items() if other != file)
        exported = re.findall(r"export (?:async )?(?:function\*?|const|let|class) (\w+)", texts[file])
        assert [name for name in exported if not re.search(rf"\b{name}\b", others)] == [], file


async def test_files_are_served_with_a_strict_policy(broker: BrokerServer) -> None:
    """Every file needs no login, allows scripts of this host only, and is not sent again while it is the same."""
    page = await ask(broker, "GET", "/", user=None)
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy and page.headers["x-content-type-options"] == "nosniff"
    script = await ask(broker, "GET", "/page/main.js", user=None)
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    assert script.body == (FOLDER / "main.js").read_bytes()
    again = await ask(broker, "GET", "/page/main.js", user=None, If_None_Match=script.headers["etag"])
    assert (again.status, again.body, again.headers["etag"]) == (304, b"", script.headers["etag"])
    for path in ("/page/nothing.js", "/page/%2e%2e/files.py", "/page/..%2ffiles.py", "/page"):
        assert (await ask(broker, "GET", path, user=None)).status == 404, path
    assert (await ask(broker, "PUT", "/page/main.js", user=None)).status == 405
