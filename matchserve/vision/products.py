"""Matrix products in blocks that BLAS computes on the calling thread.

NumPy's OpenBLAS shares a larger product among threads of its own, which wait busily: on the sizes
of a pair of images they cost several times the CPU time that they save, and each request that runs
at the same time starts them again. Its limit is a process-wide setting, which a library must not
change for its caller.
"""

from __future__ import annotations

import numpy as np

from matchserve.types import Float32

# OpenBLAS uses one thread for at most 4 * 65536 multiply-adds (interface/gemm.c).
_MULTIPLY_ADDS = 1 << 18


def multiply(rows: Float32, matrix: Float32) -> Float32:
    """Return `rows` (M, K) times `matrix` (K, N)."""
    found = np.empty((len(rows), matrix.shape[1]), np.float32)
    block = max(1, _MULTIPLY_ADDS // max(matrix.size, 1))
    for start in range(0, len(rows), block):
        part = slice(start, start + block)
        np.matmul(rows[part], matrix, out=found[part])
    return found


def weighted_sums(rows: Float32, weights: Float32) -> Float32:
    """Return the sums over `rows` (M, P) weighted by `weights` (P,), (M,)."""
    return np.asarray(np.einsum("mp,p->m", rows, weights), np.float32)
