"""Time a detector.onnx: the scores of a level of 1024 x 768 pixels, and of its whole pyramid.

python docs/research/learned_detector/speed.py models/robust/detector.onnx
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime

_REACH, _LEAST_SIDE, _PER_OCTAVE = 24, 40, 2
_TIMES = 8


def main() -> None:
    """Print the processor time of one thread, best of eight."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        Path(sys.argv[1]).read_bytes(), options, providers=["CPUExecutionProvider"]
    )
    sizes = [np.rint(np.array([768, 1024]) * 2 ** (-k / _PER_OCTAVE)) for k in range(20)]
    padded = [size + 2 * _REACH for size in sizes if size.min() >= _LEAST_SIDE]
    for name, each in (("level", sizes[:1]), ("pyramid", padded)):
        levels = [
            np.random.default_rng(0).uniform(0, 255, (1, 1, *size.astype(int))).astype(np.float32)
            for size in each
        ]
        best = min(_seconds(session, levels) for _ in range(_TIMES))
        print(f"{name}: {1e3 * best:.1f} CPU-ms, {len(levels)} levels")  # noqa: T201


def _seconds(session: onnxruntime.InferenceSession, levels: list[np.ndarray]) -> float:
    start = time.thread_time()
    for level in levels:
        session.run(["scores"], {"level": level})
    return time.thread_time() - start


if __name__ == "__main__":
    main()
