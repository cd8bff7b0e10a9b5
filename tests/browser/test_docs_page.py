"""The page of the HTTP API at /docs."""

from __future__ import annotations

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.browser.chromium import chromium_path, is_required
from tests.server_process import ServerProcess

pytestmark = pytest.mark.browser

if chromium_path() is None and not is_required():
    pytest.skip("no chromium: the page tests were left out", allow_module_level=True)


def test_every_operation_is_shown_without_scripts_of_other_hosts(
    page: Page, server: ServerProcess
) -> None:
    """The fixture fails for any error, also of the content security policy, and for other hosts."""
    page.goto(f"{server.url}/docs")
    expect(page.locator(".opblock").first).to_be_visible(timeout=30_000)
    paths = httpx.get(f"{server.url}/openapi.json").json()["paths"]
    operations = sum(len(methods) for methods in paths.values())
    expect(page.locator(".opblock")).to_have_count(operations)
    page.locator(".opblock-summary-path", has_text="/v1/match").first.click()
    expect(page.locator(".opblock-body").first).to_contain_text("min_confidence")


def test_the_page_has_no_inline_script_and_keeps_the_policy(server: ServerProcess) -> None:
    answer = httpx.get(f"{server.url}/docs")
    assert "unsafe-inline" not in answer.headers["content-security-policy"]
    assert answer.text.count("<script") == answer.text.count("<script defer src=")
