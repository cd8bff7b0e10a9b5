"""Jobs through the Python client, against a real service."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from matchserve.client import AsyncClient, AsyncClientJob, Client, ClientJob, ServiceError
from matchserve.client_jobs import JobEvent
from matchserve.errors import DeadlineExceeded, MissingInput
from tests.corner_scene import write_scene
from tests.in_process import served

GUARD_S = 300.0


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("client-scene")
    write_scene(folder, 3)
    return folder / "images"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, scene: Path) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("client-jobs")
    with (
        served(data_dir=folder / "data", default_model="rootsift", job_niceness=0, job_cores=1) as (
            http,
            _,
        ),
        Client(str(http.base_url), timeout_s=GUARD_S) as made,
    ):
        assert made.upload("corner", scene) == ["0000.png", "0001.png", "0002.png"]
        yield made


@pytest.fixture(scope="module")
def finished(client: Client) -> tuple[ClientJob, list[Any]]:
    shown: list[Any] = []
    job = client.submit(
        "match_collection", collection="corner", max_keypoints=300, exports=["colmap"], model=None
    )
    assert job.wait(shown.append, timeout_s=GUARD_S) is job
    return job, shown


def test_a_finished_job_has_results_that_can_be_downloaded(
    client: Client, finished: tuple[ClientJob, list[Any]], tmp_path: Path
) -> None:
    job, shown = finished
    assert job.state == "succeeded"
    assert all(progress["total"] >= progress["done"] for progress in shown)
    assert "database.db" in job.results()
    paths = job.download(tmp_path / "results")
    assert [path.name for path in paths] == job.results()
    with sqlite3.connect(tmp_path / "results" / "database.db") as database:
        (images,) = database.execute("SELECT count(*) FROM images").fetchone()
    assert images == 3
    assert client.job(job.id).fields == job.fields
    with pytest.raises(ServiceError, match="no such result"):
        job.download(tmp_path, "nothing.txt")


def test_events_continue_after_a_lost_connection(
    finished: tuple[ClientJob, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No event is lost or yielded twice when each connection breaks after two events."""
    job, _ = finished
    whole = list(job.events())
    assert [event.number for event in whole] == list(range(1, len(whole) + 1))
    assert [whole[0].kind, whole[-1].kind] == ["queued", "succeeded"]
    read = ClientJob._events_after

    def broken(job: ClientJob, last: int) -> Iterator[JobEvent]:
        for number, event in enumerate(read(job, last)):
            if number == 2:
                raise httpx.ReadError("the connection was closed")
            yield event

    monkeypatch.setattr(ClientJob, "_events_after", broken)
    monkeypatch.setattr("matchserve.client_jobs.RECONNECT_S", 0.0)
    assert list(job.events()) == whole


def test_a_job_that_does_not_end_and_one_that_was_cancelled() -> None:
    """A service that only says what it is told: whether a real job ends first is a race."""
    fields: dict[str, Any] = {
        "id": "j1",
        "state": "running",
        "progress": None,
        "results": [],
        "error": None,
    }

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "DELETE":
            fields["state"] = "cancelled"
        return httpx.Response(200, json=fields)

    with Client("http://service", transport=httpx.MockTransport(answer)) as client:
        job = client.job("j1")
        with pytest.raises(DeadlineExceeded, match="job j1 is running after 0 s"):
            job.wait(timeout_s=0.0)
        assert job.cancel().state == "cancelled"
        with pytest.raises(ServiceError, match="job j1: cancelled"):
            job.wait()


def test_a_key_starts_one_job(client: Client) -> None:
    order: dict[str, Any] = {"collection": "corner", "max_keypoints": 302}
    first, second = (
        client.submit("match_collection", idempotency_key="once", **order) for _ in range(2)
    )
    assert first.id == second.id
    assert client.submit("match_collection", **order).id != first.id
    with pytest.raises(ServiceError) as caught:
        client.submit("match_collection", idempotency_key="once", collection="corner")
    assert caught.value.http_status == 422


def test_mistakes_are_named(client: Client, tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match="no JPEG"):
        client.upload("empty", tmp_path)
    with pytest.raises(ServiceError, match="no collection"):
        client.submit("match_collection", collection="nowhere")


def test_the_asynchronous_client_runs_jobs(
    client: Client,
    finished: tuple[ClientJob, list[Any]],
    scene: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It uploads, follows, downloads and resumes events as the blocking client does."""
    done, _ = finished
    whole = list(done.events())
    read = AsyncClientJob._events_after

    async def broken(job: AsyncClientJob, last: int) -> AsyncGenerator[JobEvent, None]:
        number = 0
        async for event in read(job, last):
            if number == 2:
                raise httpx.ReadError("the connection was closed")
            number += 1
            yield event

    async def run() -> None:
        async with AsyncClient(str(client._http.base_url), timeout_s=GUARD_S) as asynchronous:
            names = await asynchronous.upload("corner", scene)
            assert names == ["0000.png", "0001.png", "0002.png"]
            order: dict[str, Any] = {"collection": "corner", "max_keypoints": 300}
            job = await asynchronous.submit("match_collection", idempotency_key="async", **order)
            assert (await job.wait(lambda progress: None, timeout_s=GUARD_S)).state == "succeeded"
            (path,) = await job.download(tmp_path, "report.json")
            assert path.read_bytes().startswith(b"{")
            with pytest.raises(ServiceError, match="no such result"):
                await job.download(tmp_path, "nothing.txt")
            again = await asynchronous.job(done.id)
            assert again.fields == done.fields
            assert [event async for event in again.events()] == whole
            monkeypatch.setattr(AsyncClientJob, "_events_after", broken)
            assert [event async for event in again.events()] == whole
            with pytest.raises(MissingInput, match="no JPEG"):
                await asynchronous.upload("empty", tmp_path)
            with pytest.raises(ServiceError, match="should match pattern"):
                await asynchronous.job("nothing")

    monkeypatch.setattr("matchserve.client_jobs.RECONNECT_S", 0.0)
    asyncio.run(run())


def test_an_asynchronous_job_that_does_not_end_and_one_that_was_cancelled() -> None:
    state: dict[str, Any] = {
        "id": "j1",
        "state": "running",
        "progress": {"done": 1},
        "results": [],
        "error": None,
    }
    shown: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "DELETE":
            state["state"] = "cancelled"
        return httpx.Response(200, json=state)

    async def run() -> None:
        transport = httpx.MockTransport(answer)
        async with AsyncClient("http://service", transport=transport) as client:
            job = await client.job("j1")
            with pytest.raises(DeadlineExceeded, match="job j1 is running after 0 s"):
                await job.wait(shown.append, timeout_s=0.0)
            assert (await job.cancel()).state == "cancelled"
            with pytest.raises(ServiceError, match="job j1: cancelled"):
                await job.wait()

    asyncio.run(run())
    assert shown == [{"done": 1}]
