"""A browser that looks at the page of a run: Debian's chromium, driven by playwright."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.conftest import Launch

# On a busy machine a browser takes long.
expect.set_options(timeout=30_000)

#: Opens the page of a run at some width, in a colour scheme, and returns it.
OpenPage = Callable[..., Page]


@pytest.fixture
def browser() -> Iterator[Browser]:
    """A browser without a window."""
    with sync_playwright() as playwright:
        # Its sandbox needs another user than root.
        started = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def open_page(launch: Launch, browser: Browser) -> Iterator[OpenPage]:
    """Serves the page of a run, and opens it. At the end its console must be empty."""
    complaints: list[str] = []

    def opened(run: str, width: int = 1280, scheme: str = "light", *, share: bool = False) -> Page:
        words = ("page", "--no-browser", *(["--share"] if share else []), run)
        served = launch.start(*words).until(lambda it: it.out.count("token=") > share)
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
        page.set_default_timeout(30_000)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        # The address that only reads is printed last.
        page.goto(re.findall(r"http://\S+", served.out)[-1 if share else 0])
        page.locator("#times:not(:empty)").wait_for()
        return page

    yield opened
    assert not complaints
