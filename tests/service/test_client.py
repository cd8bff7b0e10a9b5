"""The Python client and the command line against a real service."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner

from matchserve.cli import app
from matchserve.client import AsyncClient, Client, ServiceError, Unreachable
from matchserve.client_calls import wait_s
from tests.patience import wait_until
from tests.server_process import ServerProcess, free_port

Pair = dict[str, bytes]


def test_everything_the_service_offers(
    server: ServerProcess, http: httpx.Client, pair: Pair
) -> None:
    direct = http.post("/v1/match", files=pair, data={"verify": "homography"}).json()
    with Client(server.url.removeprefix("http://")) as client:  # an address without a scheme
        found = client.match(pair["image0"], pair["image1"], verify="homography")
        np.testing.assert_array_equal(found.matches, direct["matches"])
        assert found.geometry_matrix is not None
        np.testing.assert_allclose(found.geometry_matrix, direct["geometry"]["matrix"])
        assert found.same_scene == direct["same_scene"]
        assert client.match(*pair.values(), verify="none").same_scene is None
        assert found.points0.shape == found.points1.shape == (len(found.matches), 2)
        first, second = (client.features(pair[name]) for name in ("image0", "image1"))
        # Features have no pixels to refine matches with.
        unrefined = client.match(*pair.values(), verify="homography", refine="none")
        again = client.match_features(first, second, verify="homography")
        np.testing.assert_array_equal(again.matches, unrefined.matches)
        rows = client.patches(np.zeros((3, 32, 32), np.uint8) + 7, model="tiny")
        assert rows.shape == (3, 16)
        assert "tiny" in {m["name"] for m in client.models()["models"]}
        picture = client.match_as("image/png", pair["image0"], pair["image1"])
        assert picture.startswith(b"\x89PNG")


def test_the_async_client_is_the_same(server: ServerProcess, pair: Pair) -> None:
    async def ask() -> list[int]:
        async with AsyncClient(server.url) as client:
            found = await asyncio.gather(
                *(client.match(*pair.values(), refine="none") for _ in range(3))
            )
            first, second = [await client.features(image) for image in pair.values()]
            again = await client.match_features(first, second)
            await client.models()
            await client.patches(np.zeros((1, 32, 32), np.uint8), model="tiny")
            return [len(f.matches) for f in (*found, again)]

    counts = asyncio.run(ask())
    assert len(set(counts)) == 1


def test_problems_are_errors_with_their_code(server: ServerProcess, pair: Pair) -> None:
    with Client(server.url) as client, pytest.raises(ServiceError) as refusal:
        client.match(pair["image0"], b"not an image")
    assert (refusal.value.http_status, refusal.value.problem_code) == (415, "unsupported_format")


def test_a_busy_service_is_asked_again_when_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    answers = [
        httpx.Response(429, headers={"Retry-After": "7"}, json={"code": "overloaded"}),
        httpx.Response(503, headers={"Retry-After": "soon"}),
        httpx.Response(200, json={"models": [], "default": "x"}),
    ]
    with Client("http://x", transport=httpx.MockTransport(lambda _: answers.pop(0))) as client:
        assert client.models()["default"] == "x"
    assert waits == [7.0, 1.0]


@pytest.mark.parametrize(("said", "waited"), [("-5", 0.0), ("nan", 30.0), ("1e9", 30.0)])
def test_no_retry_after_is_waited_for_blindly(said: str, waited: float) -> None:
    assert wait_s(httpx.Response(429, headers={"Retry-After": said})) == waited


def test_a_broken_connection_is_made_anew_once() -> None:
    asked: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        if len(asked) in (1, 3, 4):
            raise httpx.ReadError("reset by peer")
        return httpx.Response(200, json={"default": "x"})

    async def ask() -> None:
        async with AsyncClient("http://x", transport=httpx.MockTransport(handle)) as client:
            await client.models()

    with Client("http://x", transport=httpx.MockTransport(handle)) as client:
        assert client.models() == {"default": "x"}
    with pytest.raises(Unreachable):
        asyncio.run(ask())
    assert len(asked) == 4


def test_retries_end(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    busy = httpx.MockTransport(lambda _: httpx.Response(429, json={"code": "overloaded"}))
    with Client("http://x", retries=2, transport=busy) as client, pytest.raises(ServiceError):
        client.models()
    assert len(waits) == 2


def test_the_async_client_waits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def wait(seconds: float) -> None:
        waits.append(seconds)

    answers = [httpx.Response(429, headers={"Retry-After": "3"}), httpx.Response(200, json={})]

    async def ask() -> None:
        transport = httpx.MockTransport(lambda _: answers.pop(0))
        async with AsyncClient("http://x", transport=transport) as client:
            monkeypatch.setattr("matchserve.client_async.asyncio.sleep", wait)
            await client.models()

    asyncio.run(ask())
    assert waits == [3.0]


def test_no_service_is_said_plainly() -> None:
    with Client(f"http://127.0.0.1:{free_port()}") as client, pytest.raises(Unreachable):
        client.models()


def test_match_on_a_server_from_the_command_line(
    server: ServerProcess, http: httpx.Client, pair: Pair, tmp_path: Path
) -> None:
    paths = []
    for name, data in pair.items():
        (tmp_path / f"{name}.jpg").write_bytes(data)
        paths.append(str(tmp_path / f"{name}.jpg"))
    endings = {"json": "json", "npz": "npz", "draw": "png"}
    outputs = {name: tmp_path / f"out.{ending}" for name, ending in endings.items()}
    arguments = [word for name, path in outputs.items() for word in (f"--{name}", str(path))]
    before = len(server.log())
    done = CliRunner().invoke(
        app, ["match", *paths, "--server", server.url, "--model", "rootsift", *arguments]
    )
    assert done.exit_code == 0, done.output
    wait_until(lambda: "/v1/match" in server.log()[before:])  # it was the server that matched
    direct = http.post("/v1/match", files=pair).json()
    assert json.loads(outputs["json"].read_bytes())["matches"] == direct["matches"]
    assert outputs["draw"].read_bytes().startswith(b"\x89PNG")
    with np.load(outputs["npz"]) as arrays:
        np.testing.assert_array_equal(arrays["matches"], direct["matches"])


def test_an_error_of_the_server_names_the_file(
    server: ServerProcess, pair: Pair, tmp_path: Path
) -> None:
    text, image = tmp_path / "text.jpg", tmp_path / "image.jpg"
    text.write_text("no image")
    image.write_bytes(pair["image0"])
    calls = {
        "image1": ["match", str(image), str(text)],
        "image": ["describe", str(text), "-o", str(tmp_path / "f.npz")],
    }
    for field, words in calls.items():
        done = CliRunner().invoke(app, [*words, "--server", server.url, "--model", "rootsift"])
        assert isinstance(done.exception, ServiceError)
        assert done.exception.message.startswith(f"{field} ({text}): not a JPEG")
