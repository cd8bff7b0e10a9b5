"""What the page offers besides a match: samples, swap, paste, overlay, links, large photographs."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, Route, expect

from tests.browser.chromium import chromium_path, is_required
from tests.server_process import ServerProcess, running_server

pytestmark = pytest.mark.browser

if chromium_path() is None and not is_required():
    pytest.skip("no chromium: the page tests were left out", allow_module_level=True)

SAMPLES = Path(__file__).resolve().parents[2] / "matchserve" / "web" / "samples"
WAIT_MS = 60_000


def use_sample(page: Page, name: str) -> None:
    page.fill("#max_keypoints", "600")
    page.click(f"[data-sample={name}]")
    expect(page.locator("#status")).to_contain_text("Done", timeout=WAIT_MS)


def drawn_colours(page: Page) -> dict[str, int]:
    """Pixels of the canvas in the colours of inliers, rejected matches and unmatched keypoints."""
    page.wait_for_timeout(150)
    script = """() => {
      const c = document.getElementById("viewer");
      const d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
      const near = (i, ...rgb) => rgb.every((v, n) => Math.abs(d[i + n] - v) < 14);
      const n = { inlier: 0, rejected: 0, keypoint: 0 };
      for (let i = 0; i < d.length; i += 4) {
        n.inlier += near(i, 64, 224, 176);
        n.rejected += near(i, 255, 107, 87);
        n.keypoint += near(i, 255, 209, 102);
      }
      return n;
    }"""
    found: dict[str, int] = page.evaluate(script)
    return found


def test_inliers_are_green_and_the_legend_says_what_colours_mean(page: Page) -> None:
    use_sample(page, "easy")
    expect(page.locator("#n-verdict")).to_have_text("Same scene")
    assert drawn_colours(page)["inlier"] > 200
    legend = page.locator("#legend li:visible")
    expect(legend).to_have_count(2)
    expect(legend.first).to_contain_text("inlier, confidence low to high")
    expect(legend.last).to_contain_text("rejected by the geometry")


def test_two_scenes_have_no_inliers(page: Page) -> None:
    page.click("#more summary")
    page.fill("#min_confidence", "0")
    use_sample(page, "unrelated")
    expect(page.locator("#n-verdict")).to_have_text("Not the same scene")
    expect(page.locator("#n-inliers")).to_have_text("–")
    assert int(page.locator("#n-matches").inner_text()) > 20
    expect(page.locator("#legend li:visible")).to_contain_text("doubtful match")
    page.locator("#inliers").uncheck()
    colours = drawn_colours(page)
    assert colours["inlier"] < 20
    assert colours["rejected"] < 20


def expect_no_result(page: Page) -> None:
    for name in ("verdict", "inliers", "matches", "keypoints", "time"):
        expect(page.locator(f"#n-{name}")).to_have_text("–")
    expect(page.locator("#legend")).to_be_hidden()
    expect(page.locator("#save-json")).to_be_disabled()
    expect(page.locator("#empty")).to_be_visible()
    assert drawn_colours(page)["inlier"] == 0


def test_an_error_clears_the_result_before_it(page: Page) -> None:
    use_sample(page, "easy")
    problem = {"code": "overloaded", "title": "Overloaded", "detail": "", "request_id": "1"}
    page.route("**/v1/match", lambda route: route.fulfill(status=429, json=problem))
    page.select_option("#verify", "homography")  # the images stay, only an option changes
    expect(page.locator("#problem-title")).to_contain_text("busy")
    expect_no_result(page)


def test_new_images_clear_the_result_before_they_are_matched(page: Page, tmp_path: Path) -> None:
    use_sample(page, "easy")
    damaged = tmp_path / "damaged.jpg"
    damaged.write_bytes((SAMPLES / "roofs1.jpg").read_bytes()[:20_000])
    waiting: list[Route] = []
    page.route("**/v1/match", lambda route: waiting.append(route))
    page.set_input_files("#image1", str(damaged))
    expect(page.locator("#status")).to_contain_text("Matching", timeout=WAIT_MS)
    while not waiting:
        page.wait_for_timeout(20)
    expect_no_result(page)  # nothing has come back yet
    waiting[0].continue_()
    expect(page.locator("#problem")).to_be_visible(timeout=WAIT_MS)
    expect_no_result(page)


def test_swap_and_reset(page: Page) -> None:
    use_sample(page, "easy")
    with page.expect_response("**/v1/match") as answer:
        page.click("#swap")
    expect(page.locator("#drop0 .name")).to_have_text("roofs2.jpg")
    expect(page.locator("#curl")).to_contain_text("image0=@matchserve/web/samples/roofs2.jpg")
    assert answer.value.ok
    page.select_option("#verify", "homography")
    page.click("#reset")
    expect(page.locator("#drop0 .name")).to_have_text("")
    expect(page.locator("#run")).to_be_disabled()
    expect(page.locator("#verify")).to_have_value("")
    expect(page.locator("#max_keypoints")).to_have_value("2048")
    expect(page.locator("#n-matches")).to_have_text("–")


def test_images_are_pasted(page: Page) -> None:
    script = """async (urls) => {
      const data = new DataTransfer();
      for (const [i, url] of urls.entries()) {
        const blob = await (await fetch(url)).blob();
        data.items.add(new File([blob], `pasted${i}.jpg`, { type: "image/jpeg" }));
      }
      document.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true }));
    }"""
    page.fill("#max_keypoints", "600")
    page.evaluate(script, ["/assets/samples/roofs1.jpg"])
    expect(page.locator("#drop0 .name")).to_have_text("pasted0.jpg")
    page.evaluate(script, ["/assets/samples/roofs2.jpg"])
    expect(page.locator("#n-verdict")).to_have_text("Same scene", timeout=WAIT_MS)
    expect(page.locator("#drop1 .name")).to_have_text("pasted0.jpg")


def test_the_paste_button_reads_the_clipboard(browser: Browser, server: ServerProcess) -> None:
    context = browser.new_context()
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=server.url)
    page = context.new_page()
    page.goto(server.url)
    page.evaluate(
        """async () => {
          const canvas = new OffscreenCanvas(64, 64);
          canvas.getContext("2d").fillRect(8, 8, 20, 30);
          const blob = await canvas.convertToBlob({ type: "image/png" });
          await navigator.clipboard.write([new ClipboardItem({ "image/png": blob })]);
        }"""
    )
    page.click("#paste")
    expect(page.locator("#drop0 .name")).to_have_text("pasted.png")
    context.close()


def test_the_rotated_sample_matches(page: Page) -> None:
    use_sample(page, "rotated")
    expect(page.locator("#n-verdict")).to_have_text("Same scene")


def test_the_hard_sample_matches(page: Page) -> None:
    use_sample(page, "hard")
    expect(page.locator("#n-verdict")).to_have_text("Same scene")


def test_the_overlay_lays_the_first_image_over_the_second(page: Page, samples: list[str]) -> None:
    """The second sample is the first under a homography: overlaid, they nearly agree."""
    page.set_input_files("#image0", samples[0])
    page.set_input_files("#image1", samples[1])
    expect(page.locator("#n-verdict")).to_have_text("Same scene", timeout=WAIT_MS)
    page.check("[name=mode][value=overlay]", force=True)
    expect(page.locator("#progress")).to_be_hidden(timeout=WAIT_MS)
    script = """(mix) => {
      const slider = document.getElementById("mix");
      slider.value = mix; slider.dispatchEvent(new Event("input"));
      const c = document.getElementById("overlay");
      const side = Math.round(0.4 * c.height), x = (c.width - side) / 2, y = (c.height - side) / 2;
      return [...c.getContext("2d").getImageData(x, y, side, side).data];
    }"""
    expect(page.locator("#viewer")).to_be_hidden()
    page.wait_for_timeout(300)
    second, first = (np.array(page.evaluate(script, mix), np.float64) for mix in (0, 100))
    assert not np.array_equal(first, second)  # the slider changes the picture
    greys = [array.reshape(-1, 4)[:, :3].mean(axis=1) for array in (first, second)]
    assert np.corrcoef(*greys)[0, 1] > 0.9  # the colours of the second sample were changed


def test_a_similarity_is_laid_over_without_another_request(page: Page) -> None:
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    page.select_option("#verify", "similarity")
    use_sample(page, "rotated")
    expect(page.locator("#n-verdict")).to_have_text("Same scene")
    page.check("[name=mode][value=overlay]", force=True)
    expect(page.locator("#overlay")).to_be_visible()
    page.wait_for_timeout(300)  # a request would be sent at once
    expect(page.locator("#no-overlay")).to_be_hidden()
    assert sum(url.endswith("/v1/match") for url in sent) == 1


def test_two_scenes_have_no_overlay(page: Page) -> None:
    use_sample(page, "unrelated")
    page.check("[name=mode][value=overlay]", force=True)
    expect(page.locator("#no-overlay")).to_be_visible(timeout=WAIT_MS)


def test_keypoints_are_shown_with_scale_and_orientation(page: Page) -> None:
    with page.expect_response("**/v1/match") as answer:
        use_sample(page, "easy")
    body = answer.value.json()
    assert len(set(map(tuple, body["keypoints0"]))) == 600  # positions, some with several angles
    assert len(body["scales0"]) == len(body["keypoints0"])
    before = drawn_colours(page)
    page.check("[name=mode][value=keypoints]", force=True)
    expect(page.locator("[data-mode=keypoints]")).to_contain_text("orientation")
    assert drawn_colours(page)["keypoint"] > before["keypoint"] + 200


def test_the_npz_file_holds_the_matches(page: Page) -> None:
    use_sample(page, "easy")
    with page.expect_download() as download:
        page.click("#save-npz")
    assert download.value.suggested_filename == "matches.npz"
    with np.load(io.BytesIO(Path(download.value.path()).read_bytes())) as arrays:
        assert len(arrays["matches"]) == int(page.locator("#n-matches").inner_text())


def test_options_are_kept_over_a_reload(page: Page) -> None:
    page.select_option("#verify", "auto")
    page.click("#more summary")
    page.fill("#ratio", "0.9")
    page.locator("#ratio").blur()
    page.locator("#upright").check()
    page.reload()
    expect(page.locator("#verify")).to_have_value("auto")
    expect(page.locator("#ratio")).to_have_value("0.9")
    expect(page.locator("#upright")).to_be_checked()
    expect(page.locator("#more")).to_have_attribute("open", "")


def test_a_link_keeps_the_options_and_the_sample(browser: Browser, server: ServerProcess) -> None:
    context = browser.new_context()
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=server.url)
    page = context.new_page()
    page.goto(server.url)
    page.select_option("#verify", "homography")
    use_sample(page, "easy")
    page.click("#copy-link")
    expect(page.locator("#status")).to_have_text("Copied")
    link = page.evaluate("navigator.clipboard.readText()")
    context.close()
    assert link == f"{server.url}/?verify=homography&max_keypoints=600&sample=easy"
    other = browser.new_page()  # another person, with nothing stored
    with other.expect_response("**/v1/match") as answer:
        other.goto(link)
    assert answer.value.json()["geometry"]["kind"] == "homography"
    expect(other.locator("#verify")).to_have_value("homography")
    other.close()


def test_a_wrong_link_does_no_harm(page: Page, server: ServerProcess) -> None:
    page.goto(f"{server.url}/?model=<b>none</b>&verify=nothing&sample=../../etc/passwd")
    expect(page.locator("#model")).to_have_value("rootsift")
    expect(page.locator("#verify")).to_have_value("")
    expect(page.locator("#problem")).to_be_hidden()


def test_the_menu_says_what_models_are_for(page: Page) -> None:
    expect(page.locator("#model option").first).to_be_attached()
    texts = page.locator("#model option").all_inner_texts()
    assert "rootsift (default): comparison with learned models" in texts
    expect(page.locator("#model-text")).to_contain_text("128 floats per keypoint")


def test_views_follow_the_address(page: Page, server: ServerProcess) -> None:
    page.goto(f"{server.url}/#match")
    expect(page.locator("[data-tab=match]")).to_have_attribute("aria-current", "page")
    expect(page.locator("[data-view=match]")).to_be_visible()


@pytest.fixture(scope="module")
def small_limits(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service that refuses what a page of an ordinary one would have to reduce at 50 MP."""
    folder = tmp_path_factory.mktemp("limits")
    with running_server(
        folder, default_model="rootsift", max_pixels=400_000, working_side=400, max_side=2000
    ) as running:
        yield running.url


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("large")
    paths = []
    for name in ("roofs1.jpg", "roofs2.jpg"):
        picture = Image.open(SAMPLES / name)
        picture.resize((1600, 1195)).save(folder / name, quality=90)
        paths.append(str(folder / name))
    return paths


def test_large_photographs_are_reduced_in_the_browser(
    browser: Browser, small_limits: str, large: list[str]
) -> None:
    page = browser.new_page()
    page.goto(small_limits)
    expect(page.locator("#max_side")).to_have_attribute("max", "2000")
    page.set_input_files("#image0", large[0])
    with page.expect_response("**/v1/match") as answer:
        page.set_input_files("#image1", large[1])
    body = answer.value.json()
    size = (body["image0"]["width"], body["image0"]["height"])
    assert size[0] * size[1] <= 400_000
    assert max(size) > 600  # no smaller than needed
    expect(page.locator("#status")).to_contain_text(
        f"roofs1.jpg was reduced in the browser from 1600x1195 to {size[0]}x{size[1]}",
        timeout=WAIT_MS,
    )
    expect(page.locator("#n-verdict")).to_have_text("Same scene")
    page.close()


def test_without_reduction_the_message_says_what_helps(
    browser: Browser, small_limits: str, large: list[str]
) -> None:
    page = browser.new_page()
    page.goto(small_limits)
    expect(page.locator("#max_side")).to_have_attribute("max", "2000")
    page.locator("#reduce").uncheck()
    page.set_input_files("#image0", large[0])
    page.set_input_files("#image1", large[1])
    expect(page.locator("#problem-title")).to_contain_text(
        "Tick “Reduce photographs that are too large”", timeout=WAIT_MS
    )
    expect(page.locator("#problem-text")).to_contain_text("reduce it to 731x546 or less")
    page.locator("#reduce").check()  # the advice works
    expect(page.locator("#n-verdict")).to_have_text("Same scene", timeout=WAIT_MS)
    page.close()


def test_an_api_key_is_never_in_a_link_or_stored(page: Page) -> None:
    page.evaluate("document.getElementById('key-field').hidden = false")
    page.fill("#key", "secret")
    page.locator("#key").blur()
    page.select_option("#verify", "auto")
    stored = page.evaluate("JSON.stringify({ ...localStorage })")
    assert json.loads(stored)
    assert "secret" not in stored
