"""The stages of a run: scan the folder, describe new images, choose pairs, match them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from matchserve.collections import pairs as pairings
from matchserve.collections.ledger import ImageRow, Ledger
from matchserve.collections.pairs.images import PairImage, Retriever
from matchserve.collections.parts import Part
from matchserve.collections.pool import Pool, Task
from matchserve.collections.progress import Meter, Step
from matchserve.collections.refining import refine_shard, refined_path
from matchserve.collections.scan import Scan
from matchserve.collections.shards import Shard, divide, shard_id, shard_path
from matchserve.collections.store import FeatureStore
from matchserve.collections.work import Setup, describe_images, match_shard
from matchserve.errors import ImageTooLarge, ProviderUnavailable
from matchserve.hardware import available_cpus, memory_limit_bytes
from matchserve.vision.tiles import detection_bytes

IMAGES_PER_TASK = 16
"""Number of images that a killed worker may lose."""

_TASKS_OF_A_SMALL_RUN = 8
_READ_IN_WINDOWS = (ImageTooLarge.code, ProviderUnavailable.code)
_WORKER_BYTES = 200 << 20


@dataclass(slots=True)
class Counts:
    """What a run did: images described, pairs matched, and damaged feature files made again."""

    described: int = 0
    matched: int = 0
    remade: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """One run on a collection: its ledger, its worker processes, and what it has done so far."""

    ledger: Ledger
    setup: Setup
    found: Scan
    pool: Pool
    part: Part | None = None
    counts: Counts = field(default_factory=Counts)

    @property
    def paths(self) -> dict[str, Path]:
        """The file of each image by name."""
        return {image.name: image.path for image in self.found.images}


def describe(run: Run) -> Iterator[Step]:
    """Describe the images that are new, changed, or have lost their features."""
    todo = _images_to_describe(run)
    if run.part is not None:
        todo = run.part.own_first(todo)
    paths = run.paths
    meter = Meter("describe", len(run.found.images), len(run.found.images) - len(todo))
    yield meter.step()
    size = min(max(len(todo) // _TASKS_OF_A_SMALL_RUN, 1), IMAGES_PER_TASK)
    groups = [todo[start : start + size] for start in range(0, len(todo), size)]
    tasks = [(run.setup, [(name, paths[name]) for name in group]) for group in groups]
    for _, receipts in run.pool.run(describe_images, tasks):
        run.ledger.set_described(receipts)
        run.counts.described += sum(receipt.was_made for receipt in receipts)
        run.counts.refused += sum(bool(receipt.code) for receipt in receipts)
        yield meter.step(len(receipts), run.counts.refused)


def plan(run: Run, specification: str, retriever: Retriever) -> Iterator[Step]:
    """Choose the pairs, and divide those that are new into shards.

    Raises:
        InvalidParameter: the specification of the pairs is wrong.
    """
    yield Step("pair", 0, 1)
    images = [row for row in run.ledger.images() if row.state != "gone"]
    keys = {row.id: row.feature_key for row in images}
    _drop_lost_shards(run, keys)
    candidates = [_pair_image(row) for row in images]
    parts = pairings.resolve(pairings.parse(specification), candidates)
    stamp = _choice_stamp(parts, candidates, keys)
    if not stamp or run.ledger.choice() != stamp:
        _choose(run, parts, candidates, keys, retriever, stamp)
    yield Step("pair", 1, 1)


def match(run: Run) -> Iterator[Step]:
    """Match the shards that have no result yet."""
    names = [name for name, _ in run.ledger.shards("planned")]
    tasks = _ShardTasks(run, [n for n in names if run.part is None or run.part.owns(n)])
    total, done = run.ledger.pair_counts()
    if run.part is not None:
        total = done + sum(len(run.ledger.shard_pairs(name)) for name in tasks.names)
    meter = Meter("match", total, done)
    yield meter.step()
    for number, receipt in run.pool.run(match_shard, tasks):
        run.ledger.set_matched(receipt, run.ledger.shard_pairs(tasks.names[number]))
        run.counts.matched += len(receipt.matches) if receipt.was_made else 0
        run.counts.remade += receipt.remade
        yield meter.step(len(receipt.matches))


def refine(run: Run) -> Iterator[Step]:
    """Refine the matched points of the shards that have no refined points yet."""
    folder = run.setup.matches
    names = [name for name, _ in run.ledger.shards("done")]
    missing = [name for name in names if not refined_path(folder, name).is_file()]
    tasks = _ShardTasks(run, missing)
    _, total = run.ledger.pair_counts()
    waiting = sum(len(run.ledger.shard_pairs(name)) for name in missing)
    meter = Meter("refine", total, total - waiting)
    yield meter.step()
    for _, pairs in run.pool.run(refine_shard, tasks):
        yield meter.step(pairs)


class _ShardTasks(Sequence[Task]):
    """The arguments of `match_shard` for some shards, made when they are needed.

    All of them at once would not fit in memory for a million pairs.
    """

    def __init__(self, run: Run, names: Sequence[str]) -> None:
        self.names = names
        self._run = run
        self._rows = {row.id: row for row in run.ledger.images()}
        self._paths = run.paths

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, number: int) -> Task: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Task]: ...
    def __getitem__(self, number: int | slice) -> Task | Sequence[Task]:
        if isinstance(number, slice):
            return [self[n] for n in range(*number.indices(len(self)))]
        name = self.names[number]
        pairs = self._run.ledger.shard_pairs(name)
        members = {image: self._rows[image] for pair in pairs for image in pair}
        keys = tuple((members[a].feature_key, members[b].feature_key) for a, b in pairs)
        files = {row.feature_key: self._paths[row.name] for row in members.values()}
        focal_px = {
            row.feature_key: row.facts.focal_px
            for row in members.values()
            if row.facts is not None and row.facts.focal_px is not None
        }
        return self._run.setup, Shard(name, keys, focal_px), files


def worker_count(requested: int | None, max_side: int) -> int:
    """Return the number of workers that fit in memory, at most one for each processor.

    The memory of a worker grows with the working size; without one, images of 24 megapixels are
    assumed.
    """
    pixels = 0.75 * max_side**2 if max_side else 24e6
    fitting = int(memory_limit_bytes() / (_WORKER_BYTES + detection_bytes(pixels)))
    return max(1, min(requested or available_cpus(), fitting))


def _images_to_describe(run: Run) -> list[str]:
    """Bring the ledger up to date with the folder; return the images to describe, in order."""
    rows = {row.name: row for row in run.ledger.images()}
    store = FeatureStore(run.setup.store)

    def is_current(name: str, size: int, mtime_ns: int) -> bool:
        row = rows.get(name)
        if row is None or (row.bytes, row.mtime_ns) != (size, mtime_ns):
            return False
        if row.state == "refused":  # an earlier version, or one without pyvips, refused these
            return run.setup.tiles == "never" or row.code not in _READ_IN_WINDOWS
        return row.state == "described" and row.feature_key in store

    outdated = [i for i in run.found.images if not is_current(i.name, i.bytes, i.mtime_ns)]
    run.ledger.add_images((i.name, i.bytes, i.mtime_ns) for i in outdated)
    there = {image.name for image in run.found.images}
    run.ledger.set_gone(n for n, r in rows.items() if n not in there and r.state != "gone")
    waiting = {i.name for i in outdated}
    run.counts.refused = sum(
        row.state == "refused" and name in there and name not in waiting
        for name, row in rows.items()
    )
    return [i.name for i in outdated]


def _pair_image(row: ImageRow) -> PairImage:
    position = None if row.facts is None else row.facts.position
    return PairImage(row.id, row.name, position, row.state == "described")


def _choice_stamp(
    parts: Sequence[pairings.Part], images: Sequence[PairImage], keys: dict[int, str]
) -> str:
    """Return a text that changes with what the pairs depend on; empty for files of pairs."""
    if any(part.name == "list" for part in parts):
        return ""
    rows = [(i.id, i.name, i.position, i.is_usable, keys[i.id]) for i in images]
    texts = [(part.name, part.arguments) for part in parts]
    return hashlib.sha256(json.dumps([texts, rows]).encode()).hexdigest()


def _choose(
    run: Run,
    parts: Sequence[pairings.Part],
    images: Sequence[PairImage],
    keys: dict[int, str],
    retriever: Retriever,
    stamp: str,
) -> None:
    """Choose pairs and record what is new, no longer wanted, or wanted for other reasons."""
    wanted, reasons = pairings.choose(images, parts, retriever)
    _drop_reduced_shards(run, wanted)
    known = run.ledger.pairs()
    is_new, is_gone, changed = _compare(known, wanted, reasons)
    run.ledger.forget_pairs(map(tuple, known[is_gone][:, :2].tolist()))
    run.ledger.add_reasons(map(tuple, changed.tolist()))
    rows = np.column_stack([wanted, reasons])[is_new]
    run.ledger.plan([_named_shard(run.setup, group, keys) for group in _shards(rows)], stamp)


def _drop_reduced_shards(run: Run, wanted: NDArray[np.int64]) -> None:
    """Forget planned shards with pairs that are not wanted: a shard is named by all its pairs."""
    codes = _code(wanted)
    planned = [name for name, _ in run.ledger.shards("planned")]
    pairs = {name: np.array(run.ledger.shard_pairs(name), np.int64) for name in planned}
    reduced = [
        name for name, rows in pairs.items() if not np.isin(_code(rows.reshape(-1, 2)), codes).all()
    ]
    if reduced:
        run.ledger.drop_shards(reduced)


def _drop_lost_shards(run: Run, keys: dict[int, str]) -> None:
    """Forget shards whose pairs have changed, and reopen those whose result is lost."""
    planned = {name for name, _ in run.ledger.shards("planned")}
    for name, _ in run.ledger.shards():
        has_result = shard_path(run.setup.matches, name).is_file()
        if name not in planned and has_result:
            continue
        pairs = run.ledger.shard_pairs(name)
        rows = [(keys.get(a, ""), keys.get(b, "")) for a, b in pairs]
        if shard_id(rows, run.setup.options, run.setup.verifier) != name:
            run.ledger.drop_shards([name])
        elif name not in planned:
            run.ledger.reopen(name)


def _compare(
    known: NDArray[np.int64], wanted: NDArray[np.int64], reasons: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.int64]]:
    """Return which wanted pairs are new, which known ones are not wanted, and changed reasons."""
    known_code, wanted_code = _code(known[:, :2]), _code(wanted)
    is_new = ~np.isin(wanted_code, known_code)
    is_gone = ~np.isin(known_code, wanted_code)
    kept = known[~is_gone]
    # Both are sorted, so the wanted reasons of kept pairs are found by search.
    place = np.searchsorted(wanted_code, known_code[~is_gone])
    has_changed = kept[:, 2] != reasons[place] if len(reasons) else np.zeros(len(kept), np.bool_)
    changed = np.column_stack([kept[:, :2], reasons[place]])[has_changed]
    return is_new, is_gone, changed


def _code(pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each pair as one number that sorts as the pairs do."""
    return np.asarray(pairs[:, 0] << 32 | pairs[:, 1])


def _shards(rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Divide rows (image0, image1, reasons) into shards."""
    code = _code(rows[:, :2])  # sorted, as the pairs are
    return [
        np.column_stack([group, rows[np.searchsorted(code, _code(group)), 2]])
        for group in divide(rows[:, :2])
    ]


def _named_shard(
    setup: Setup, rows: NDArray[np.int64], keys: dict[int, str]
) -> tuple[str, NDArray[np.int64]]:
    """Return the name of a shard with its rows, in the order in which the ledger lists them."""
    ordered = rows[np.lexsort((rows[:, 0], rows[:, 1]))]
    names = [(keys[a], keys[b]) for a, b, _ in ordered.tolist()]
    return shard_id(names, setup.options, setup.verifier), ordered
