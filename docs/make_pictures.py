"""`python docs/make_pictures.py`: make the pictures of the documentation again.

Starts the service, takes screenshots of its page with Chromium, and draws matches. All photographs
are those of scikit-image and of the page's sample pairs; nothing is downloaded. Look at the
pictures before you commit them.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import skimage
from PIL import Image
from playwright.sync_api import expect, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
SAMPLES = ROOT / "matchserve" / "web" / "samples"
ASTRONAUT = Path(skimage.__file__).parent / "data" / "astronaut.png"
START_S = 60.0
# With cached features, the page would show the times of matching only.
NO_CACHE = {"MATCHSERVE_CACHE_BYTES": "0"}
WIDTH = 1280
JPEG = {"quality": 82, "optimize": True, "progressive": True}


def main() -> None:
    """Make every picture in docs/images except methods.png, which `evaluate --plot` draws."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with service() as url:
            photograph_page(url, folder)
        draw_matches(folder)
        draw_comparison(folder)
    for picture in sorted(IMAGES.iterdir()):
        sys.stdout.write(f"{picture.relative_to(ROOT)}: {picture.stat().st_size // 1024} KB\n")


@contextmanager
def service() -> Iterator[str]:
    """Run the service on a free port and yield its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "matchserve", "serve", "--port", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **NO_CACHE})  # noqa: S603
    try:
        wait_for(f"http://127.0.0.1:{port}/readyz")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def wait_for(url: str) -> None:
    """Wait until `url` responds."""
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(url, timeout=5):  # noqa: S310  our own server
                return
        except OSError:
            time.sleep(0.2)
    raise SystemExit(f"{url} did not respond within {START_S:.0f} s")


def photograph_page(url: str, folder: Path) -> None:
    """Match the sample pair on the page, light and dark."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for scheme, name in (("light", "page.jpg"), ("dark", "page-dark.jpg")):
            page = browser.new_page(
                viewport={"width": WIDTH, "height": 860},
                color_scheme="dark" if scheme == "dark" else "light",
            )
            page.goto(url)
            page.click("[data-sample=hard]")
            expect(page.locator("#status")).to_contain_text("Done", timeout=120_000)
            # The model is loaded now: the times of the second run are typical.
            page.click("#run")
            expect(page.locator("#status")).to_contain_text("Matching", timeout=120_000)
            expect(page.locator("#status")).to_contain_text("Done", timeout=120_000)
            page.screenshot(path=folder / f"{scheme}.png")
            save(Image.open(folder / f"{scheme}.png"), name)
        browser.close()


def draw_matches(folder: Path) -> None:
    """Draw the inliers of the sample pair, as `matchserve match --draw` does."""
    pair = [str(SAMPLES / f"street{side}.jpg") for side in (1, 2)]
    drawn = folder / "matches.png"
    run("matchserve", "match", *pair, "--draw", str(drawn))
    save(Image.open(drawn), "matches.jpg")


def draw_comparison(folder: Path) -> None:
    """Draw right and wrong matches of RootSIFT and of compact on a generated night view."""
    drawn = folder / "compare.png"
    models = ["--model", "rootsift", "--model", "compact"]
    run("training", "picture", str(ASTRONAUT), "-o", str(drawn), *models, "--seed", "3")
    save(Image.open(drawn), "compare.jpg")


def run(module: str, *arguments: str) -> None:
    """Run `python -m module` and fail if it fails."""
    subprocess.run([sys.executable, "-m", module, *arguments], cwd=ROOT, check=True)  # noqa: S603


def save(picture: Image.Image, name: str) -> None:
    """Write a picture of at most `WIDTH` pixels as JPEG."""
    picture = picture.convert("RGB")
    picture.thumbnail((WIDTH, WIDTH))
    picture.save(IMAGES / name, **JPEG)


if __name__ == "__main__":
    main()
