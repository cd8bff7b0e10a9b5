"""Collections and jobs over real HTTP."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from matchserve.api.service import Service
from tests.corner_scene import write_scene
from tests.in_process import served

Served = tuple[httpx.Client, Service]
JOB = {"kind": "match_collection", "collection": "corner", "max_keypoints": 300}
WAIT_S = 300.0  # a guard: the machine may be busy


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("jobs-scene")
    write_scene(folder, 4)
    return {path.name: path.read_bytes() for path in sorted((folder / "images").iterdir())}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, images: dict[str, bytes]) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("jobs")
    with served(
        data_dir=folder / "data", default_model="rootsift", job_niceness=0, job_cores=1
    ) as (client, service):
        upload(client, "corner", images)
        yield client, service


def upload(client: httpx.Client, name: str, images: dict[str, bytes], **options: Any) -> None:
    assert client.put(f"/v1/collections/{name}", **options).status_code == 201
    for image, data in images.items():
        sent = client.put(
            f"/v1/collections/{name}/images/left/{image}",
            content=data,
            headers={"Content-Type": "image/png", **options.get("headers", {})},
        )
        assert sent.status_code == 201, sent.text


def submit(client: httpx.Client, **fields: Any) -> str:
    answer = client.post("/v1/jobs", json={**JOB, **fields})
    assert answer.status_code == 202, answer.text
    assert answer.headers["location"] == f"/v1/jobs/{answer.json()['id']}"
    return str(answer.json()["id"])


def wait(client: httpx.Client, job: str, *states: str) -> dict[str, Any]:
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        found: dict[str, Any] = client.get(f"/v1/jobs/{job}").json()
        if found["state"] in (states or ("succeeded", "failed", "cancelled")):
            return found
        time.sleep(0.1)
    raise AssertionError(found)


def read_events(client: httpx.Client, job: str, last: int = 0, stop_after: int = 0) -> list[Any]:
    events, current = [], {}
    headers = {"Last-Event-ID": str(last)} if last else {}
    with client.stream("GET", f"/v1/jobs/{job}/events", headers=headers, timeout=WAIT_S) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        for line in stream.iter_lines():
            name, _, value = line.partition(": ")
            if name in ("id", "event", "data"):
                current[name] = value
            if not line and "id" in current:
                events.append((int(current["id"]), current["event"], json.loads(current["data"])))
                current = {}
                if stop_after and len(events) == stop_after:
                    break
    return events


@pytest.fixture(scope="module")
def finished(running: Served) -> dict[str, Any]:
    client, _ = running
    job = wait(client, submit(client, exports=["colmap", "npz"]))
    assert job["state"] == "succeeded", job
    return job


def test_events_come_in_order_and_again_after_a_reconnect(
    running: Served, finished: dict[str, Any]
) -> None:
    client, _ = running
    events = read_events(client, finished["id"])
    assert [number for number, _, _ in events] == list(range(1, len(events) + 1))
    assert [kind for _, kind, _ in events][:2] == ["queued", "running"]
    assert events[-1][1] == "succeeded"
    stages = [data["stage"] for _, kind, data in events if kind == "progress"]
    assert list(dict.fromkeys(stages)) == ["describe", "pair", "match", "refine", "export"]
    cut = read_events(client, finished["id"], stop_after=3)
    assert cut + read_events(client, finished["id"], last=3) == events


def test_many_readers_see_every_event_of_a_running_job(running: Served) -> None:
    client, service = running
    job = submit(client, pairs="sequential:1")
    seen: list[list[Any]] = []
    threads = [
        threading.Thread(target=lambda: seen.append(read_events(client, job))) for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert len(seen) == 20
    expected = read_events(client, job)
    assert all(events == expected for events in seen)
    assert service.events.readers == 0


def test_results_have_ranges_and_tags(running: Served, finished: dict[str, Any]) -> None:
    client, _ = running
    names = {file["name"]: file for file in finished["results"]}
    assert set(names) == {"database.db", "graph.json", "npz.zip", "report.json", "report.png"}
    whole = client.get(names["database.db"]["url"])
    assert len(whole.content) == names["database.db"]["bytes"]
    assert whole.content[:15] == b"SQLite format 3"
    etag = whole.headers["etag"]
    part = client.get(names["database.db"]["url"], headers={"Range": "bytes=100-199"})
    assert (part.status_code, part.content) == (206, whole.content[100:200])
    again = client.get(names["database.db"]["url"], headers={"If-None-Match": etag})
    assert (again.status_code, again.content) == (304, b"")
    stale = client.get(
        names["database.db"]["url"], headers={"Range": "bytes=0-9", "If-Range": '"other"'}
    )
    assert (stale.status_code, len(stale.content)) == (200, len(whole.content))
    outside = client.get(names["database.db"]["url"], headers={"Range": "bytes=99999999-"})
    assert outside.status_code == 416
    graph = client.get(names["graph.json"]["url"]).json()
    assert [image["name"] for image in graph["images"]] == [f"left/{n:04d}.png" for n in range(4)]
    assert len(graph["pairs"]) == 6


def test_a_pair_of_a_job(running: Served, finished: dict[str, Any]) -> None:
    client, _ = running
    url = f"/v1/jobs/{finished['id']}"
    names = {"image0": "left/0000.png", "image1": "left/0001.png"}
    pair = client.get(f"{url}/pair", params=names).json()
    assert len(pair["points0"]) == len(pair["points1"]) == len(pair["inliers"]) > 20
    assert pair["is_verified"]
    image = client.get(f"{url}/image", params={"name": "left/0000.png"})
    assert image.headers["content-type"] == "image/png"
    assert image.content[:4] == b"\x89PNG"
    for wrong in ("../service.db", "left/../left/0000.png", "left/9.png", "/etc/passwd"):
        assert client.get(f"{url}/image", params={"name": wrong}).status_code == 404
        refused = client.get(f"{url}/pair", params={**names, "image1": wrong})
        assert refused.json()["code"] == "unknown_image"


def test_cancelling_keeps_what_was_done(running: Served, images: dict[str, bytes]) -> None:
    client, service = running
    client.put("/v1/collections/slow")
    for turn in range(4):
        for name, data in images.items():
            client.put(
                f"/v1/collections/slow/images/{turn}-{name}",
                content=data + bytes([turn]),  # other bytes, so that nothing is reused
                headers={"Content-Type": "image/png"},
            )
    job = submit(client, collection="slow", pairs="exhaustive")
    folder = service.settings.data_dir
    assert folder is not None
    end = time.monotonic() + WAIT_S
    while not list(folder.glob("collections/public/slow/features/*/*.npz")):
        assert time.monotonic() < end
        time.sleep(0.02)
    assert client.delete(f"/v1/jobs/{job}").status_code == 202
    done = wait(client, job)
    assert done["state"] == "cancelled", done
    described = set(folder.glob("collections/public/slow/features/*/*.npz"))
    times = {path: path.stat().st_mtime_ns for path in described}
    again = wait(client, submit(client, collection="slow", pairs="sequential:1", exports=[]))
    assert again["state"] == "succeeded", again
    assert {path: path.stat().st_mtime_ns for path in described} == times
    assert client.delete("/v1/collections/slow").status_code == 204
    assert not (folder / "collections" / "public" / "slow").exists()


def test_a_failed_job_says_why(running: Served) -> None:
    client, _ = running
    client.put("/v1/collections/empty")
    job = wait(client, submit(client, collection="empty", kind="reconstruct"))
    assert job["state"] == "failed"
    assert job["error"]["code"] == "missing_input"
    assert job["error"]["detail"] == "there are no images in the collection"


def test_idempotency(running: Served) -> None:
    client, _ = running
    headers = {"Idempotency-Key": "again"}
    first = client.post("/v1/jobs", json=JOB, headers=headers)
    second = client.post("/v1/jobs", json=JOB, headers=headers)
    assert (first.status_code, second.status_code) == (202, 200)
    assert first.json()["id"] == second.json()["id"]
    other = client.post("/v1/jobs", json={**JOB, "pairs": "exhaustive"}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")
    wait(client, first.json()["id"])


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"pairs": "list:/etc/passwd"}, 422, "invalid_parameter"),
        ({"pairs": "everything"}, 422, "invalid_parameter"),
        ({"collection": "../corner"}, 422, "invalid_parameter"),
        ({"collection": "none"}, 404, "unknown_collection"),
        ({"collection": None, "source": "/etc"}, 404, "unknown_source"),
        ({"source": "/etc"}, 422, "invalid_parameter"),
        ({"model": "../rootsift"}, 404, "unknown_model"),
        ({"max_keypoints": 1_000_000}, 422, "invalid_parameter"),
        ({"kind": "format_disk"}, 422, "invalid_parameter"),
        ({"exports": ["colmap", "colmap"]}, 422, "invalid_parameter"),
        ({"workers": 99}, 422, "invalid_parameter"),
    ],
)
def test_requests_that_are_refused(
    running: Served, fields: dict[str, Any], status: int, code: str
) -> None:
    answer = running[0].post("/v1/jobs", json={**JOB, **fields})
    assert (answer.status_code, answer.json()["code"]) == (status, code)


@pytest.mark.parametrize(
    ("name", "status"),
    [("..%2F..%2Fx.png", 422), ("a%2F..%2Fx.png", 422), (".x.png", 422), ("x%0A.png", 404),
     ("x.txt", 422), ("a" * 300 + ".png", 422), ("%2e%2e%2fx.png", 422)],
)  # fmt: skip
def test_names_of_uploads(running: Served, name: str, status: int) -> None:
    client, service = running
    url = f"{client.base_url}/v1/collections/corner/images/{name}"
    answer = httpx.put(url, content=b"x", headers={"Content-Type": "image/png"})
    assert answer.status_code == status, answer.text
    assert service.settings.data_dir is not None
    assert not list(service.settings.data_dir.parent.glob("**/x.png"))


def test_uploads_must_be_images(running: Served) -> None:
    client, _ = running
    url = "/v1/collections/corner/images/left/new.png"
    headers = {"Content-Type": "image/png"}
    assert client.put(url, content=b"", headers=headers).status_code == 422
    assert client.put(url, content=b"GIF89a", headers=headers).status_code == 415
    text = client.put(url, content=b"{}", headers={"Content-Type": "application/json"})
    assert text.status_code == 415
    assert client.get("/v1/collections/corner").json()["images"] == 4


def test_each_key_has_its_own_names(tmp_path: Path, images: dict[str, bytes]) -> None:
    source = tmp_path / "photos"
    source.mkdir()
    with served(
        data_dir=tmp_path / "data", default_model="rootsift", api_keys="first-key,second-key",
        job_cores=0, quota_queued_jobs=2, sources=str(source),
    ) as (client, _):  # fmt: skip
        mine, yours = ({"X-API-Key": key} for key in ("first-key", "second-key"))
        upload(client, "corner", images, headers=mine)
        job = client.post("/v1/jobs", json=JOB, headers=mine).json()["id"]
        for path in ("", "/events", "/results/database.db", "/pair?image0=a&image1=b"):
            other = client.get(f"/v1/jobs/{job}{path}", headers=yours)
            assert (other.status_code, other.json()["code"]) == (404, "unknown_job")
        assert client.delete(f"/v1/jobs/{job}", headers=yours).status_code == 404
        assert client.get("/v1/collections/corner", headers=yours).status_code == 404
        assert client.get("/v1/jobs", headers=yours, params={"before": job}).json()["jobs"] == []
        forged = client.get("/v1/jobs", headers=mine, params={"before": "' OR 1=1 --"})
        assert forged.status_code == 422
        assert client.get(f"/v1/jobs/{job}").status_code == 401
        body = {"kind": "reconstruct", "source": str(source)}
        assert client.post("/v1/jobs", json=body, headers=mine).status_code == 202
        refused = client.post("/v1/jobs", json=body, headers=mine)
        assert (refused.status_code, refused.json()["code"]) == (429, "quota_exceeded")
        assert (refused.json()["limit"], refused.json()["value"]) == (2, 3)
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("service.db*"))
    assert b"first-key" not in stored


def test_without_a_folder_there_are_no_collections() -> None:
    with served(default_model="rootsift") as (client, _):
        answer = client.get("/v1/collections")
        assert (answer.status_code, answer.json()["code"]) == (404, "collections_disabled")
        assert client.get("/info").json()["collections"] is False


def test_a_stopped_service_puts_its_job_back(tmp_path: Path, images: dict[str, bytes]) -> None:
    settings = {"data_dir": tmp_path / "data", "default_model": "rootsift", "job_niceness": 0}
    with served(**settings) as (client, _):
        upload(client, "corner", images)
        job = submit(client)
        wait(client, job, "running", "succeeded")
    with sqlite3.connect(tmp_path / "data" / "service.db") as db:
        ((state,),) = db.execute("SELECT state FROM job").fetchall()
    db.close()
    assert state in ("queued", "succeeded")
    with served(**settings) as (client, _):
        assert wait(client, job)["state"] == "succeeded"
