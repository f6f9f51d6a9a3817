"""A headless Chromium, and pages opened in it that must not complain or reach for the network."""

import shutil
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Frame, Page, sync_playwright

from vision_attn.pages import inspect as parts

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")

Open = Callable[..., Page]

# A page draws with its next frame, which a busy machine shows late. Here it draws at once, so that
# a test reads what its last click or key has changed. `wait_for_function` then needs `polling` in
# milliseconds: by default it polls with each frame, and would let nothing else run.
DRAW_AT_ONCE = """
globalThis.requestAnimationFrame = (draw) => {
  queueMicrotask(() => draw(performance.now()));
  return 1;
};
"""

# What was asked for is opened, and its canvases have followed their elements' sizes.
IS_SHOWN = """views.length === state.views.length
  && state.views.every(({ item }) => items[item])
  && views.every(({ stage: { canvas, element } }) =>
    canvas.width === Math.round(element.clientWidth * devicePixelRatio)
    && canvas.height === Math.round(element.clientHeight * devicePixelRatio))"""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test in a browser is a slow one."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, CHROMIUM)))
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path)
        yield chromium
        chromium.close()


@pytest.fixture
def window(browser: Browser) -> Iterator[Open]:
    """Opens an empty page in a window of its own, whose pages draw at once."""
    contexts = []

    def open_window(**options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1300, "height": 900}, **options})
        contexts.append(context)
        context.add_init_script(DRAW_AT_ONCE)
        return context.new_page()

    yield open_window
    for context in contexts:
        context.close()


def until(page: Page | Frame, condition: str, seconds: float = 60) -> None:
    """Waits for a condition; a page's policy may forbid what Playwright's own waiting does."""
    end = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < end, condition
        page.wait_for_timeout(20)


def settle(page: Page | Frame) -> None:
    """Until a page to inspect shows what was asked for last."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    until(page, IS_SHOWN)


def link_of(page: Page) -> str:
    """The link to what a page shows, once the page has written it into its address."""
    written = """async () => {
      while (location.hash !== `#${linkOf(state)}`) await new Promise((next) => setTimeout(next, 20));
      return location.hash.slice(1);
    }"""
    return str(page.evaluate(written))


@pytest.fixture
def show(window: Open, tmp_path: Path) -> Iterator[Open]:
    """Opens inspections, or HTML, as a file; in the end there was no complaint and no request."""
    complaints: list[str]
    complaints, requests = [], []
    files = count()

    def open_page(shown: list[parts.Inspection] | str, link: str = "", **context: Any) -> Page:
        file = tmp_path / f"{next(files)}.html"
        file.write_text(shown if isinstance(shown, str) else parts.Page.of(shown).html)
        page = window(**{"viewport": {"width": 1280, "height": 860}, **context})
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"{error.message} {error.stack}"))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(f"{file.as_uri()}#{link}")
        if not isinstance(shown, str):
            page.wait_for_selector("html[data-ready]")
        return page

    yield open_page
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file://", "data:", "blob:"))] == []
