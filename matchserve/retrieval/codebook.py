"""Codebooks: the words that descriptors of one model are assigned to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matchserve.errors import ModelCorrupt, ModelMismatch, StorageDamaged
from matchserve.libraries import import_faiss
from matchserve.objects import Place
from matchserve.sealed import read_sealed, write_sealed
from matchserve.types import Float32

WORDS_FILE = "words.npz"
"""Name of the codebook in the directory of its model."""

WORDS = 8192
"""Number of words of a codebook; more find more, and take longer to assign."""

ITERATIONS = 10
_MIN_ROWS_PER_WORD = 8


@dataclass(frozen=True, slots=True, eq=False)
class Codebook:
    """The words of a model, (K, D) float32, and the fingerprint of the model."""

    words: Float32
    fingerprint: str
    trained_on: str = ""

    def __len__(self) -> int:
        return len(self.words)


def as_vectors(descriptors: NDArray[Any]) -> Float32:
    """Return descriptors as float rows; bits become -1 and 1, scaled to unit length."""
    if descriptors.dtype != np.uint8:
        return np.ascontiguousarray(descriptors, np.float32)
    bits = np.unpackbits(descriptors, axis=1).astype(np.float32)
    return np.asarray((2 * bits - 1) / np.sqrt(np.float32(bits.shape[1])), np.float32)


def train_codebook(
    vectors: Float32, fingerprint: str, *, words: int = WORDS, seed: int = 0, trained_on: str = ""
) -> Codebook:
    """Find words by k-means; fewer than requested if there are few vectors.

    Raises:
        ModelMismatch: there are not enough vectors for a single word.
    """
    count = min(words, len(vectors) // _MIN_ROWS_PER_WORD)
    if count < 1:
        raise ModelMismatch(f"a codebook needs more than {len(vectors)} descriptors")
    faiss = import_faiss()
    means = faiss.Kmeans(
        vectors.shape[1], count, niter=ITERATIONS, seed=seed,
        min_points_per_centroid=1, max_points_per_centroid=64,
    )  # fmt: skip
    means.train(np.ascontiguousarray(vectors, np.float32))
    return Codebook(np.asarray(means.centroids, np.float32), fingerprint, trained_on)


def write_codebook(path: Place, codebook: Codebook) -> None:
    """Write a codebook; words are stored with 16 bits."""
    write_sealed(
        path,
        {
            "words": codebook.words.astype(np.float16),
            "fingerprint": np.array(codebook.fingerprint),
            "trained_on": np.array(codebook.trained_on),
        },
    )


def read_codebook(path: Place, fingerprint: str) -> Codebook:
    """Read the codebook of a model.

    Raises:
        ModelCorrupt: the file is damaged.
        ModelMismatch: it belongs to another model.
    """
    try:
        arrays = read_sealed(path)
        codebook = Codebook(
            arrays["words"].astype(np.float32),
            str(arrays["fingerprint"]),
            str(arrays["trained_on"]),
        )
    except (StorageDamaged, KeyError, TypeError, ValueError) as error:
        raise ModelCorrupt(f"{path} is not a codebook, or is damaged") from error
    words = codebook.words
    if words.ndim != 2 or not words.size or not np.isfinite(words).all():
        raise ModelCorrupt(f"{path} is not a codebook: its words are not finite rows")
    if codebook.fingerprint != fingerprint:
        raise ModelMismatch(
            f"{path} is the codebook of model {codebook.fingerprint}, not {fingerprint}"
        )
    return codebook
