"""Plan and report a generated collection of 100,000 images and 1.4 million pairs, without images.

    python docs/research/measure_ledger.py [IMAGES]

Prints CPU seconds of the plan and of the status, and the peak memory.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from matchserve.collections import stages
from matchserve.collections.collection import DEFAULT_OPTIONS
from matchserve.collections.ledger import Ledger
from matchserve.collections.pairs.images import PairRows
from matchserve.collections.pool import WorkerPool
from matchserve.collections.report import view_graph
from matchserve.collections.scan import Scan
from matchserve.collections.work import Described, Setup

NEIGHBOURS = 20


def retrieve(ids: Sequence[int], count: int) -> PairRows:
    """Return neighbours of which half are mutual, as retrieval finds them: 14 pairs an image."""
    rng = np.random.default_rng(0)
    numbers = np.array(ids, np.int64)
    step = rng.integers(1, round(1.4 * count), (len(numbers), count // 2))
    other = (numbers[:, None] + np.concatenate([step, -step], axis=1) - 1) % len(numbers) + 1
    return np.stack([np.repeat(numbers, other.shape[1]), other.ravel()], axis=1)


def main() -> None:
    """Fill a ledger, plan, and make the view graph."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        ledger = Ledger(folder / "collection.db")
        names = [f"flight/IMG_{n:06d}.jpg" for n in range(count)]
        ledger.add_images((name, 1, 1) for name in names)
        ledger.set_described(Described(n, "s", f"{i:064x}", 2048) for i, n in enumerate(names))
        setup = Setup(folder, folder / "matches", "compact", DEFAULT_OPTIONS)
        run = stages.Run(ledger, setup, Scan(), WorkerPool(1))
        start = time.process_time()
        for _ in stages.plan(run, f"retrieval:{NEIGHBOURS}", retrieve):
            pass
        planned = time.process_time()
        pairs = ledger.pairs()
        pairs[:, 3:] = [300, 200, 1]
        graph = view_graph({row.id: row.name for row in ledger.images()}, pairs)
        ended = time.process_time()
        ledger.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(  # noqa: T201
        f"{count} images, {len(pairs)} pairs, {len(graph.components)} component(s): plan "
        f"{planned - start:.1f} s, status {ended - planned:.1f} s of CPU, peak {peak:.0f} MB"
    )


if __name__ == "__main__":
    main()
