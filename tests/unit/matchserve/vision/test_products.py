"""Products in blocks equal whole ones, and BLAS starts no threads for them."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from matchserve.types import Float32
from matchserve.vision.products import multiply, weighted_sums


def _rows(rows: int, columns: int) -> Float32:
    return np.random.default_rng(rows).normal(size=(rows, columns)).astype(np.float32)


@pytest.mark.parametrize(("rows", "inner", "columns"), [(0, 5, 3), (1, 441, 6), (1500, 441, 3)])
def test_product_in_blocks_equals_the_whole(rows: int, inner: int, columns: int) -> None:
    one, other = _rows(rows, inner), _rows(inner, columns)
    np.testing.assert_allclose(multiply(one, other), one @ other, atol=1e-3)
    np.testing.assert_allclose(weighted_sums(one, other[:, 0]), one @ other[:, 0], atol=1e-3)


# The threads of BLAS spin for a while after it is loaded, so the best of several rounds counts.
ROUNDS = """
import time
import numpy as np
from matchserve.vision.products import multiply, weighted_sums

rows = np.ones((1500, 441), np.float32)
matrix = np.ones((441, 6), np.float32)
ratios = []
for _ in range(10):
    time.sleep(0.1)
    process, thread = time.process_time(), time.thread_time()
    for _ in range(30):
        PRODUCT
    thread = time.thread_time() - thread
    ratios.append((time.process_time() - process) / thread)
print(min(ratios))
"""


def test_only_the_calling_thread_computes() -> None:
    """The other threads of the process use no CPU time."""
    code = ROUNDS.replace("PRODUCT", "multiply(rows, matrix); weighted_sums(rows, matrix[:, 0])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    assert float(done.stdout) < 1.3
