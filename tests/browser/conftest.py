"""A real Chromium on the real page.

Without a Chromium the page tests are left out, in one line; with PAGE_TESTS=required they fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.chromium import chromium_path
from tests.server_process import ServerProcess, running_server
from tests.tiny_models import write_tiny_model

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


# Not for the whole session: Playwright keeps an event loop running in this thread until it ends,
# and other tests want one of their own.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = chromium_path()
    if path is None:
        pytest.fail("PAGE_TESTS=required, but there is no chromium")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield running
        running.close()


@pytest.fixture(scope="module")
def server(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("page")
    write_tiny_model(folder / "models" / "tiny")
    with running_server(folder, models_dir=folder / "models", cache_bytes=0) as running:
        yield running


@pytest.fixture
def page(browser: Browser, server: ServerProcess) -> Iterator[Page]:
    """A page that fails its test when anything in it goes wrong."""
    opened = browser.new_page(viewport={"width": 1360, "height": 900})
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on(
        "console",
        # A refused request is a line in the console too; the page's own words are tested.
        lambda line: (
            problems.append(line.text)
            if line.type == "error" and "Failed to load resource" not in line.text
            else None
        ),
    )
    elsewhere: list[str] = []
    opened.on(
        "request",
        lambda r: (
            None if r.url.startswith((server.url, "blob:", "data:")) else elsewhere.append(r.url)
        ),
    )
    opened.goto(server.url)
    yield opened
    opened.close()
    assert not problems
    assert not elsewhere


@pytest.fixture(scope="session")
def samples() -> list[str]:
    web = Path(__file__).resolve().parents[2] / "matchserve" / "web"
    return [str(web / f"sample{side}.jpg") for side in (0, 1)]
