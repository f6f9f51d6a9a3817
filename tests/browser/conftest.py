"""A headless Chromium, and pages opened in it that must not complain or reach for the network."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from vision_attn.pages import inspect as parts

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")

Open = Callable[..., Page]


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
def show(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Opens inspections, or HTML, as a file; in the end there was no complaint and no request."""
    pages: list[Any]
    pages, complaints, requests = [], [], []

    def open_page(shown: list[parts.Inspection] | str, link: str = "", **context: Any) -> Page:
        file = tmp_path / f"{len(pages)}.html"
        file.write_text(shown if isinstance(shown, str) else parts.Page.of(shown).html)
        page = browser.new_context(
            **{"viewport": {"width": 1280, "height": 860}, **context}
        ).new_page()
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"{error.message} {error.stack}"))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(f"{file.as_uri()}#{link}")
        if not isinstance(shown, str):
            page.wait_for_selector("html[data-ready]")
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.context.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file://", "data:", "blob:"))] == []
