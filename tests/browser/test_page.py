"""What a person does with the page."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.chromium import chromium_path, is_required
from tests.server_process import ServerProcess

pytestmark = pytest.mark.browser

SAMPLES = Path(__file__).resolve().parents[2] / "matchserve" / "web" / "samples"

if chromium_path() is None and not is_required():
    pytest.skip("no chromium: the page tests were left out", allow_module_level=True)


def choose(page: Page, samples: list[str]) -> None:
    page.set_input_files("#image0", samples[0])
    page.set_input_files("#image1", samples[1])
    expect(page.locator("#n-verdict")).to_have_text("Same scene", timeout=30_000)
    expect(page.locator("#progress")).to_be_hidden()


def drawn_pixels(page: Page) -> int:
    """Pixels of the canvas that are not empty."""
    script = """() => {
      const c = document.getElementById("viewer");
      const data = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
      let n = 0;
      for (let i = 3; i < data.length; i += 4) n += data[i] > 0;
      return n;
    }"""
    page.wait_for_timeout(100)
    return int(page.evaluate(script))


def number(page: Page, name: str) -> int:
    return int(page.locator(f"#n-{name}").inner_text())


def test_dropping_two_images_draws_their_matches(page: Page, samples: list[str]) -> None:
    assert drawn_pixels(page) == 0
    script = """async (urls) => {
      const files = await Promise.all(urls.map(async (url, i) =>
        new File([await (await fetch(url)).blob()], `dropped${i}.jpg`, {type: "image/jpeg"})));
      const data = new DataTransfer();
      files.forEach((file) => data.items.add(file));
      const drop = new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true});
      document.getElementById("drop0").dispatchEvent(drop);
    }"""
    page.evaluate(script, ["/assets/sample0.jpg", "/assets/sample1.jpg"])
    expect(page.locator("#n-verdict")).to_have_text("Same scene", timeout=30_000)
    assert number(page, "inliers") > 200
    assert drawn_pixels(page) > 100_000
    expect(page.locator("#curl")).to_contain_text("image0=@dropped0.jpg")
    expect(page.locator("#timing")).to_contain_text("detect")


def test_hovering_a_match_shows_both_patches(page: Page, samples: list[str]) -> None:
    choose(page, samples)
    expect(page.locator("#hover")).to_be_hidden()
    point = page.evaluate(
        """async () => {
          const { x, y } = document.getElementById("viewer").getBoundingClientRect();
          const answer = await (await fetch("/v1/match", {method: "POST", body: (() => {
            const form = new FormData();
            form.append("image0", document.getElementById("image0").files[0]);
            form.append("image1", document.getElementById("image1").files[0]);
            return form; })()})).json();
          const canvas = document.getElementById("viewer");
          const scale = 0.96 * Math.min(canvas.width / (512 + 12 + 560), canvas.height / 512);
          const left = (canvas.width - 1084 * scale) / 2, top = (canvas.height - 512 * scale) / 2;
          const i = answer.inliers.indexOf(true);
          const [px, py] = answer.keypoints0[answer.matches[i][0]];
          return [x + left + (px + 0.5) * scale, y + top + (py + 0.5) * scale];
        }"""
    )
    page.mouse.move(*point)
    expect(page.locator("#hover")).to_be_visible()
    expect(page.locator("#hover-text")).to_contain_text("confidence")
    for name in ("patch0", "patch1"):
        colours = page.evaluate(
            f"""() => new Set(document.getElementById("{name}").getContext("2d")
                .getImageData(0, 0, 112, 112).data).size"""
        )
        assert colours > 10
    page.mouse.move(2, 2)
    expect(page.locator("#hover")).to_be_hidden()


def test_zoom_pan_and_the_keyboard(page: Page, samples: list[str]) -> None:
    choose(page, samples)
    page.locator("#viewer").focus()
    page.wait_for_timeout(200)
    fitted = page.locator("#viewer").screenshot()
    page.keyboard.press("+")
    page.keyboard.press("ArrowLeft")
    page.wait_for_timeout(100)
    assert page.locator("#viewer").screenshot() != fitted
    page.keyboard.press("n")
    expect(page.locator("#hover")).to_be_visible()
    first = page.locator("#hover-text").inner_text()
    page.keyboard.press("n")
    assert page.locator("#hover-text").inner_text() != first
    page.keyboard.press("Escape")
    expect(page.locator("#hover")).to_be_hidden()
    page.keyboard.press("0")
    page.wait_for_timeout(200)
    assert page.locator("#viewer").screenshot() == fitted


def test_the_slider_and_the_toggle_filter(page: Page, samples: list[str]) -> None:
    choose(page, samples)
    inliers, matches = number(page, "inliers"), number(page, "matches")
    expect(page.locator("#shown")).to_have_text(f"{inliers} shown")
    page.locator("#inliers").uncheck()
    expect(page.locator("#shown")).to_have_text(f"{matches} shown")
    page.locator("#score").evaluate("e => { e.value = 0.99; e.dispatchEvent(new Event('input')); }")
    assert int(page.locator("#shown").inner_text().split()[0]) < matches


def test_changing_the_model_matches_again(page: Page, samples: list[str]) -> None:
    choose(page, samples)
    before = number(page, "inliers")
    with page.expect_response("**/v1/match") as answer:
        page.select_option("#model", "tiny")
    assert answer.value.json()["model"] == "tiny"
    expect(page.locator("#n-inliers")).not_to_have_text(str(before))
    expect(page.locator("#curl")).to_contain_text("model=tiny")
    expect(page.locator("#timing")).to_contain_text("infer")


def test_an_error_is_shown_kindly(page: Page, samples: list[str], tmp_path: Path) -> None:
    damaged = tmp_path / "<b>holiday.jpg"
    damaged.write_bytes(Path(samples[0]).read_bytes()[:30_000])
    page.set_input_files("#image0", samples[0])
    page.set_input_files("#image1", str(damaged))
    expect(page.locator("#problem")).to_be_visible(timeout=30_000)
    expect(page.locator("#problem-title")).to_contain_text("seems damaged")
    expect(page.locator("#problem-id")).to_contain_text("corrupt_image, request ")
    # The name is text, never markup.
    expect(page.locator("#drop1 .name")).to_have_text("<b>holiday.jpg")
    page.set_input_files("#image1", samples[1])
    expect(page.locator("#n-verdict")).to_have_text("Same scene", timeout=30_000)
    expect(page.locator("#problem")).to_be_hidden()


def test_the_sample_and_the_curl_line_give_the_same(page: Page) -> None:
    page.click("[data-sample=easy]")
    expect(page.locator("#n-verdict")).to_have_text("Same scene", timeout=30_000)
    with page.expect_response("**/v1/match"):
        page.click("#more summary")
        page.fill("#ratio", "0.9")
        page.locator("#ratio").blur()
    expect(page.locator("#progress")).to_be_hidden()
    words = shlex.split(page.locator("#curl").inner_text())
    done = subprocess.run(
        [words[0], "-s", *words[1:]], cwd=SAMPLES.parents[2], capture_output=True, check=True
    )
    assert len(json.loads(done.stdout)["matches"]) == number(page, "matches")


def test_downloads(page: Page, samples: list[str]) -> None:
    choose(page, samples)
    with page.expect_download() as picture:
        page.click("#save-png")
    assert Path(picture.value.path()).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_dark(
    browser: Browser, server: ServerProcess, scheme: str
) -> None:
    page = browser.new_page(color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(server.url)
    ratio = page.evaluate(
        """() => {
          const linear = (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
          const lum = (text) => {
            const [r, g, b] = text.match(/[0-9.]+/g).map((v) => linear(Number(v) / 255));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
          const backOf = (e) => { const c = getComputedStyle(e).backgroundColor;
            return c === "rgba(0, 0, 0, 0)" ? backOf(e.parentElement) : lum(c); };
          const contrast = (e) => { const f = lum(getComputedStyle(e).color), back = backOf(e);
            return (Math.max(f, back) + 0.05) / (Math.min(f, back) + 0.05); };
          return Math.min(...[...document.querySelectorAll("label, legend")].map(contrast));
        }"""
    )
    page.close()
    assert ratio >= 4.5


def test_a_phone_has_no_sideways_scroll_and_large_targets(
    browser: Browser, server: ServerProcess, samples: list[str]
) -> None:
    page = browser.new_page(viewport={"width": 375, "height": 740}, has_touch=True)
    page.goto(server.url)
    choose(page, samples)
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    heights = page.evaluate(
        """() => [...document.querySelectorAll("#form button, #form select, .zoom button")]
            .map((e) => e.getBoundingClientRect().height)"""
    )
    page.close()
    assert min(heights) >= 40


def test_limits_are_those_of_the_service(page: Page, server: ServerProcess) -> None:
    limits = httpx.get(f"{server.url}/info").json()["limits"]
    for field, limit in (("#max_keypoints", "max_keypoints"), ("#max_side", "max_side")):
        expect(page.locator(field)).to_have_attribute("max", str(limits[limit]))
    expect(page.locator("#max_side")).to_have_attribute("placeholder", str(limits["working_side"]))


def test_without_a_data_folder_collections_say_how_to_get_one(page: Page) -> None:
    page.locator("[data-tab=collections]").click()
    expect(page.locator("#no-collections")).to_contain_text("--data-dir")
    expect(page.locator("#start-job")).to_be_disabled()
    expect(page.locator("#collection-problem")).to_be_hidden()
