"""The view of collections: a folder in, a job, its graph and pairs, and a download."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.chromium import chromium_path, is_required
from tests.corner_scene import write_scene
from tests.server_process import ServerProcess, running_server

pytestmark = pytest.mark.browser

if chromium_path() is None and not is_required():
    pytest.skip("no chromium: the page tests were left out", allow_module_level=True)

JOB_MS = 300_000  # a guard: the machine may be busy
IMAGES = 4


@pytest.fixture(scope="module")
def server(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A service with a folder for collections."""
    folder = tmp_path_factory.mktemp("collections-page")
    with running_server(
        folder, default_model="rootsift", data_dir=folder / "data", job_niceness=0
    ) as running:
        yield running


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("folder")
    write_scene(folder / "scene", IMAGES)
    photographs = folder / "my corner"
    (folder / "scene" / "images").rename(photographs)
    (photographs / "notes.txt").write_text("not an image")
    whole = next(photographs.glob("*.png")).read_bytes()
    (photographs / "broken.png").write_bytes(whole[: len(whole) // 2])
    (photographs / "renamed.jpg").write_text("not an image, whatever its name says")
    return photographs


def open_view(page: Page) -> None:
    page.locator("[data-tab=collections]").click()
    expect(page.locator("#collections")).to_be_visible()
    expect(page.locator("[data-view=match]")).to_be_hidden()


def drawn_share(page: Page) -> float:
    """Share of the pixels of the pair's canvas that are not empty."""
    script = """() => {
      const c = document.getElementById("pair-viewer");
      const data = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
      let n = 0;
      for (let i = 3; i < data.length; i += 4) n += data[i] > 0;
      return 4 * n / data.length;
    }"""
    return float(page.evaluate(script))


def test_a_folder_becomes_a_reconstruction(page: Page, photographs: Path, tmp_path: Path) -> None:
    open_view(page)
    expect(page.locator("#start-job")).to_be_disabled()
    page.set_input_files("#folder", str(photographs))
    expect(page.locator("#folder-text")).to_contain_text(f"{IMAGES + 2} images")
    expect(page.locator("#collection-name")).to_have_value("my-corner")
    page.fill("#job-keypoints", "600")
    page.click("#start-job")
    expect(page.locator("#cancel-job")).to_be_visible()
    expect(page.locator("#job-status")).to_have_text("Done", timeout=JOB_MS)
    expect(page.locator("#cancel-job")).to_be_hidden()
    expect(page.locator("#r-registered")).to_have_text(f"{IMAGES} of {IMAGES + 1}")
    expect(page.locator("#report-notes")).to_have_text(
        "Not uploaded: renamed.jpg (unsupported_format). Not used: broken.png (corrupt_image)"
    )
    assert int(page.locator("#r-points").inner_text().replace(",", "")) > 50
    expect(page.locator("#graph .node")).to_have_count(IMAGES)
    assert page.locator("#graph .edge").count() >= IMAGES - 1
    expect(page.locator("#pair-text")).to_contain_text("inliers")
    assert drawn_share(page) > 0.3
    with page.expect_download() as download:
        page.get_by_role("button", name="database.db").click()
    download.value.save_as(tmp_path / "database.db")
    with sqlite3.connect(tmp_path / "database.db") as db:
        ((count,),) = db.execute("SELECT count(*) FROM images").fetchall()
    db.close()
    assert count == IMAGES


def test_any_pair_can_be_looked_at(page: Page) -> None:
    open_view(page)  # the newest job is shown
    expect(page.locator("#job-status")).to_have_text("Done", timeout=JOB_MS)
    expect(page.locator("#graph .edge.chosen")).to_have_count(1)
    before = page.locator("#graph .edge.chosen").get_attribute("data-pair")
    options = page.locator("#pair-list option").evaluate_all("all => all.map((o) => o.value)")
    other = next(value for value in options if value != before)
    page.select_option("#pair-list", other)
    expect(page.locator(f'#graph .edge.chosen[data-pair="{other}"]')).to_have_count(1)
    expect(page.locator("#pair-viewer")).not_to_have_attribute("aria-label", "No pair yet")
    page.locator("#graph .node").first.click()
    expect(page.locator("#pair-text")).not_to_be_empty()
    values = page.locator("#pair-list option").evaluate_all("all => all.map((o) => o.value)")
    assert values
    assert all("0" in value.split("-") for value in values)
    page.click("#all-pairs")
    expect(page.locator("#pair-list option")).to_have_count(len(options))


def test_a_problem_is_shown_and_the_other_view_still_works(
    page: Page, photographs: Path, samples: list[str]
) -> None:
    open_view(page)
    expect(page.locator("#job-status")).to_have_text("Done", timeout=JOB_MS)
    page.set_input_files("#folder", str(photographs))
    page.evaluate("document.getElementById('job-keypoints').max = ''")
    page.fill("#job-keypoints", "1000000")
    page.click("#start-job")
    expect(page.locator("#collection-problem")).to_contain_text("max_keypoints", timeout=60_000)
    expect(page.locator("#start-job")).to_be_enabled()
    page.locator("[data-tab=match]").click()
    page.set_input_files("#image0", samples[0])
    page.set_input_files("#image1", samples[1])
    expect(page.locator("#n-verdict")).to_have_text("Same scene", timeout=60_000)
