"""Collections in object stores and on Dask: the same bytes as on one machine, also with faults."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from matchserve import objects
from matchserve.collections.collection import Collection
from matchserve.errors import CapacityError, InvalidParameter, StorageUnavailable
from matchserve.matcher import Options
from matchserve.vision.keypoints import DetectOptions
from tests.corner_scene import write_scene
from tests.faults.s3_server import Bucket, s3_server

OPTIONS = Options(detect=DetectOptions(max_keypoints=200), exif="ignore")
WAIT_S = 300.0  # a guard: the machine may be busy


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("remote")
    write_scene(folder, 4)
    return folder / "images"


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, images: Path) -> dict[str, bytes]:
    """The files of a run in one process."""
    place = tmp_path_factory.mktemp("local")
    list(collection(place, images).match("exhaustive", workers=1))
    return contents(place)


def collection(place: Path | str, images: Path) -> Collection:
    return Collection(place, images=images, model="rootsift", options=OPTIONS)


def contents(place: Path) -> dict[str, bytes]:
    files = [*place.glob("features/*/*.npz"), *place.glob("matches/*.npz")]
    return {str(path.relative_to(place)): path.read_bytes() for path in sorted(files)}


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Bucket]:
    monkeypatch.chdir(tmp_path)
    objects._store.cache_clear()
    with s3_server() as (endpoint, served):
        for name, value in {
            "AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true", "AWS_SKIP_SIGNATURE": "true",
            "AWS_REGION": "us-east-1",
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        yield served
    objects._store.cache_clear()


def stored(bucket: Bucket) -> dict[str, bytes]:
    start = "/photos/flight/"
    return {name.removeprefix(start): data for name, data in sorted(bucket.objects.items())}


def test_a_bucket_holds_the_same_bytes(
    bucket: Bucket, images: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    bucket.faults = [500, 503, "cut", 500, 503, "cut"]  # the first requests fail
    run = collection("s3://photos/flight", images)
    list(run.match("exhaustive", workers=1))
    assert stored(bucket) == expected
    assert not bucket.faults
    assert (tmp_path / "flight.work" / "collection.db").is_file()
    opened = Collection.open("s3://photos/flight")
    assert len(list(opened.results())) == 6
    again = collection("s3://photos/flight", images)
    list(again.match("exhaustive", workers=1))
    assert (again.counts.described, again.counts.matched) == (0, 0)


def test_a_damaged_object_is_made_again(
    bucket: Bucket, images: Path, expected: dict[str, bytes]
) -> None:
    list(collection("s3://photos/flight", images).match("exhaustive", workers=1))
    matches = [name for name in bucket.objects if "/matches/" in name]
    bucket.objects[matches[0]] = bucket.objects[matches[0]][:-1]
    damaged = collection("s3://photos/flight", images)
    with pytest.raises(Exception, match="run `collection match` again"):
        list(damaged.results())
    list(damaged.match("exhaustive", workers=1))
    assert stored(bucket) == expected


def test_objects_that_arrive_in_halves_or_late_are_read_again(
    bucket: Bucket, images: Path, expected: dict[str, bytes]
) -> None:
    list(collection("s3://photos/flight", images).match("exhaustive", workers=1))
    before = dict(bucket.objects)
    opened = Collection.open("s3://photos/flight")
    for faults in (["half"], ["slow"], [503, "half"]):
        bucket.faults = [*faults]
        assert len(list(opened.results())) == 6
        assert not bucket.faults
    assert bucket.objects == before  # nothing was taken for damaged and removed
    assert stored(bucket) == expected


def test_objects_that_never_arrive_whole_are_an_error(
    bucket: Bucket, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "MAX_RETRIES", 1)
    list(collection("s3://photos/flight", images).match("exhaustive", workers=1))
    before = dict(bucket.objects)
    bucket.always = "half"
    with pytest.raises(StorageUnavailable, match="s3://photos/flight/matches/"):
        list(Collection.open("s3://photos/flight").results())
    assert bucket.objects == before


def test_a_store_that_stays_away_is_an_error_and_the_run_continues_later(
    bucket: Bucket, images: Path, expected: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "MAX_RETRIES", 1)
    bucket.always = 503
    with pytest.raises(StorageUnavailable, match="s3://photos/flight") as caught:
        list(collection("s3://photos/flight", images).match("exhaustive", workers=1))
    assert caught.value.exit_code == 75
    assert not bucket.objects  # nothing half-written is visible
    bucket.always = None
    list(collection("s3://photos/flight", images).match("exhaustive", workers=1))
    assert stored(bucket) == expected


def test_addresses(tmp_path: Path) -> None:
    place = objects.as_place("s3://bucket/a")
    assert str(place / "b" / "c.npz") == "s3://bucket/a/b/c.npz"
    assert (place / "b" / "c.npz").name == "c.npz"
    assert (place / "b" / "c.npz").parent == place / "b"
    assert objects.as_place("folder/a") == Path("folder/a")
    with pytest.raises(InvalidParameter, match="ftp"):
        objects.as_place("ftp://host/a")
    local = objects.ObjectPath(f"file://{tmp_path}/store") / "x" / "y"
    assert not local.is_file()
    local.write_bytes(b"data")
    assert local.read_bytes() == b"data"
    local.unlink()
    local.unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError):
        local.read_bytes()


@contextmanager
def dask(folder: Path, workers: int) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """Start a scheduler and workers as processes; yield the address and all of them."""
    scheduler_file = folder / "scheduler.json"
    common = ["--scheduler-file", str(scheduler_file)]
    commands = [["scheduler", *common, "--port", "0", "--no-dashboard"]]
    commands += [
        ["worker", *common, "--nthreads", "1", "--no-nanny", "--no-dashboard", "--local-directory",
         str(folder)]
    ] * workers  # fmt: skip
    processes: list[subprocess.Popen[bytes]] = []
    with (folder / "dask.log").open("wb") as log:
        for command in commands:
            line = [sys.executable, "-m", "distributed.cli.dask_" + command[0], *command[1:]]
            processes.append(subprocess.Popen(line, stdout=log, stderr=log))
            end = time.monotonic() + WAIT_S
            while not scheduler_file.exists() and time.monotonic() < end:
                assert processes[0].poll() is None, (folder / "dask.log").read_text()
                time.sleep(0.1)
    try:
        yield json.loads(scheduler_file.read_text())["address"], processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_dask_cluster_gives_the_same_bytes_also_when_a_worker_dies(
    tmp_path: Path, images: Path, expected: dict[str, bytes]
) -> None:
    place = tmp_path / "work"
    with dask(tmp_path, 2) as (address, processes):
        for step in collection(place, images).match("exhaustive", dask=address):
            if step.stage == "describe" and step.done == 1:
                os.kill(processes[1].pid, signal.SIGKILL)
    assert contents(place) == expected


@pytest.mark.slow
def test_a_killed_scheduler_is_an_error_and_the_run_continues_without_it(
    tmp_path: Path, images: Path, expected: dict[str, bytes]
) -> None:
    place = tmp_path / "work"
    with dask(tmp_path, 1) as (address, processes):
        steps = collection(place, images).match("exhaustive", dask=address)
        while next(steps).done != 1:
            pass
        os.kill(processes[0].pid, signal.SIGKILL)
        with pytest.raises(CapacityError, match="scheduler") as caught:
            list(steps)
        assert caught.value.exit_code == 75
    list(collection(place, images).match("exhaustive", workers=1))
    assert contents(place) == expected


@pytest.mark.slow
def test_a_run_continues_on_a_new_scheduler(
    tmp_path: Path, images: Path, expected: dict[str, bytes]
) -> None:
    place = tmp_path / "work"
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    with dask(tmp_path / "first", 1) as (address, processes):
        steps = collection(place, images).match("exhaustive", dask=address)
        while next(steps).done != 1:
            pass
        os.kill(processes[0].pid, signal.SIGKILL)
        with pytest.raises(CapacityError, match="scheduler"):
            list(steps)
    again = collection(place, images)
    with dask(tmp_path / "second", 1) as (address, _):
        list(again.match("exhaustive", dask=address))
    assert contents(place) == expected
    assert again.counts.described < 4  # what was finished is not made again


@pytest.mark.slow
def test_two_drivers_on_one_cluster(
    tmp_path: Path, images: Path, expected: dict[str, bytes]
) -> None:
    """They share the features, so an image is described twice only if both begin at once."""
    store = tmp_path / "features"
    runs = [
        Collection(tmp_path / name, images=images, model="rootsift", options=OPTIONS, store=store)
        for name in ("one", "two")
    ]
    with dask(tmp_path, 2) as (address, _), ThreadPoolExecutor(2) as drivers:
        list(drivers.map(lambda run: list(run.match("exhaustive", dask=address)), runs))
    features = {name for name in expected if name.startswith("features/")}
    assert {str(path.relative_to(tmp_path)) for path in store.glob("*/*.npz")} == features
    for run in runs:
        for name, data in expected.items():
            place = tmp_path if name in features else run.workspace.root
            assert (place / name).read_bytes() == data
        assert run.counts.refused == 0
    assert 4 <= sum(run.counts.described for run in runs) <= 8


@pytest.mark.slow
def test_a_scheduler_that_is_not_there(tmp_path: Path, images: Path) -> None:
    run = collection(tmp_path / "work", images)
    with pytest.raises(CapacityError, match=r"tcp://127\.0\.0\.1:9"):
        next(run.match("exhaustive", dask="tcp://127.0.0.1:9"))
