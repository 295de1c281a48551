"""Take pictures of the web page: `python -m tools.screenshots` renews those of the documentation.

Starts the demo of the page, waits a while and controls a headless Chromium. With --tour it takes every screen of the
navigation, in both themes and on a phone, to check a change of the design.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ADDRESS = re.compile(r"open (http://\S+)/ ")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--force-color-profile=srgb"]
DESK = (1280, 800)
PHONE = (390, 844)
SETTLE_MS = 2500  # rates are measured between two requests


@dataclass(frozen=True, slots=True)
class Shot:
    """A picture of the documentation. `address` is appended to the page's URL; `size` is in CSS pixels."""

    name: str
    address: str
    size: tuple[int, int]
    dark: bool = False


SHOTS = (
    Shot("page-overview", "#/", DESK),
    Shot("page-queues", "#/queues?sort=messages_ready&desc=1", DESK, dark=True),
    Shot("page-queue", "#/queues/%2F/late.compensation", (1280, 940)),
    Shot("page-phone", "#/queues/%2F/late.compensation?tab=unacked", PHONE, dark=True),
)
OBJECTS = (
    "#/queues/%2F/late.compensation",
    "#/queues/%2F/archive",
    "#/queues/%2F/night.report?tab=bindings",
    "#/queues/%2F/late.compensation?tab=unacked",
    "#/queues/%2F/departures.board?tab=consumers",
    "#/queues/%2F/late.compensation?tab=details",
    "#/exchanges/%2F/flights",
)


def main() -> int:
    """Take the pictures and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.screenshots", description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "docs", help="where the pictures go (docs)")
    parser.add_argument("--warm", type=float, default=100, metavar="S", help="seconds that the demo runs before (100)")
    parser.add_argument("--queues", type=int, default=11, metavar="N", help="queues of the demo (11)")
    parser.add_argument("--tour", action="store_true", help="take every screen, in both themes and on a phone")
    parser.add_argument("--url", help="a running page with the user guest; no demo is started")
    options = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        print("needs Chromium", file=sys.stderr)
        return 1
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.url:
        take(chromium, options.url.rstrip("/"), options.folder, tour=options.tour)
        return 0
    command = [sys.executable, "-m", "demo", "--show", "page", "--http-port", "0", "--queues", str(options.queues)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as demo:
        try:
            assert demo.stdout is not None
            found = ADDRESS.search(demo.stdout.readline())
            if found is None:
                return 1
            time.sleep(options.warm)
            take(chromium, found[1], options.folder, tour=options.tour)
        finally:
            demo.send_signal(2)
    return 0


def take(chromium: str, url: str, folder: Path, *, tour: bool) -> None:
    """Take pictures of a page."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - --help works without it

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        if tour:
            for dark in (False, True):
                walk(open_page(browser, url, DESK, dark=dark), url, folder, "dark" if dark else "light")
                walk(open_page(browser, url, PHONE, dark=dark), url, folder, "phone-dark" if dark else "phone-light")
        else:
            for shot in SHOTS:
                page = open_page(browser, url, shot.size, dark=shot.dark)
                picture(page, url, shot.address, folder / f"{shot.name}.png")
        browser.close()


def open_page(browser: Any, url: str, size: tuple[int, int], *, dark: bool) -> Any:
    """Return a page of this size and theme, logged in as guest."""
    width, height = size
    page = browser.new_page(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", reduced_motion="reduce"
    )
    page.on("pageerror", lambda error: print(f"error: {error}", file=sys.stderr))
    page.goto(url)
    page.fill("[name=username]", "guest")
    page.fill("[name=password]", "guest")
    page.press("[name=password]", "Enter")
    page.wait_for_selector(".shell")
    return page


def picture(page: Any, url: str, address: str, path: Path, *, whole: bool = False) -> None:
    """Take a picture of a screen."""
    page.goto(f"{url}/{address}")
    page.wait_for_selector(f'.content[data-shown="{address}"]')
    page.wait_for_timeout(SETTLE_MS)
    page.screenshot(path=path, full_page=whole)
    print(f"{path}: {path.stat().st_size // 1000} kB", flush=True)


def walk(page: Any, url: str, folder: Path, variant: str) -> None:
    """Take a picture of every screen of the navigation and of some objects."""
    links = page.eval_on_selector_all(".nav a", "links => links.map(link => link.hash)")
    for address in [*links, *OBJECTS]:
        name = re.sub(r"\W+", "-", address.replace("%2F", "").partition("?sort")[0]).strip("-") or "overview"
        picture(page, url, address, folder / f"{name}-{variant}.png", whole=True)
        width = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        if width > 0:
            print(f"{address} is {width} px too wide", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
