"""Products of small integers by ONNX Runtime, which uses the dot-product instructions of the CPU.

NumPy and FAISS have no such product. The graph is one node, `MatMulInteger(rows, columns, zero)`
of opset 13 with the zero point 128 of the rows.
"""

from __future__ import annotations

import base64
import functools

import numpy as np
from numpy.typing import NDArray

from matchserve.models.providers import import_onnxruntime
from matchserve.types import Int32
from matchserve.vision.quantised import Product

GRAPH = base64.b64decode(
    "CAg6lAEKKgoEcm93cwoHY29sdW1ucwoEemVybxIEc3VtcyINTWF0TXVsSW50ZWdlchIHcHJvZHVjdCoMEAIqAoABQgR6"
    "ZXJvWhgKBHJvd3MSEAoOCAISCgoDEgFOCgMSAURaGwoHY29sdW1ucxIQCg4IAxIKCgMSAUQKAxIBTWIYCgRzdW1zEhAK"
    "DggGEgoKAxIBTgoDEgFNQgQKABAN"
)
"""The serialised ONNX model."""


@functools.cache
def integer_product() -> Product:
    """Return a product that runs on the calling thread alone; many threads may call it."""
    ort = import_onnxruntime()
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(GRAPH, options, providers=["CPUExecutionProvider"])

    def product(rows: NDArray[np.uint8], columns: NDArray[np.int8]) -> Int32:
        sums: Int32 = session.run(None, {"rows": rows, "columns": columns})[0]
        return sums

    return product
