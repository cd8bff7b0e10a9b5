"""The words of the images of a collection, stored beside their features."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from matchserve import defaults
from matchserve.collections.store import FeatureStore
from matchserve.collections.work import Setup, load_features
from matchserve.errors import ModelCorrupt, ModelMismatch, StorageDamaged
from matchserve.models.card import ModelCard
from matchserve.models.registry import model_directory
from matchserve.objects import Place
from matchserve.retrieval.asmk import Words, aggregate
from matchserve.retrieval.codebook import (
    WORDS_FILE,
    Codebook,
    as_vectors,
    read_codebook,
    train_codebook,
    write_codebook,
)
from matchserve.sealed import read_sealed, write_sealed
from matchserve.types import Features, Float32

_SAMPLE_IMAGES = 200
_OWN_WORDS = 4096
# Keypoints of an image that become words: retrieval was measured with this number.
_KEYPOINTS = defaults.MAX_KEYPOINTS


def codebook_path(setup: Setup, keys: Sequence[tuple[str, Path]], card: ModelCard) -> Place:
    """Return the codebook of the model, or train one on the collection if the model has none.

    `keys` are the feature keys of images with their files.
    """
    directory = model_directory(setup.model, setup.models_dir)
    if directory is not None and _is_codebook_of(directory / WORDS_FILE, card):
        return directory / WORDS_FILE
    own = setup.matches.parent / "codebook.npz"
    if not own.is_file():
        places = np.linspace(0, len(keys) - 1, min(len(keys), _SAMPLE_IMAGES)).astype(int)
        sample = [
            _vectors(load_features(setup, *keys[place])) for place in sorted(set(places.tolist()))
        ]
        codebook = train_codebook(np.concatenate(sample), card.fingerprint, words=_OWN_WORDS)
        write_codebook(own, codebook)
    return own


def make_words(
    setup: Setup, codebook: Place, fingerprint: str, images: Sequence[tuple[str, Path]]
) -> int:
    """Store the words of images that have none; return how many were made.

    `images` are feature keys with the files of the images.
    """
    made = 0
    for key, path in images:
        try:
            read_words(setup, codebook, key)
        except StorageDamaged:
            vectors = _vectors(load_features(setup, key, path))
            found, query = aggregate(vectors, _codebook(codebook, fingerprint))
            write_sealed(
                words_path(setup, codebook, key),
                {
                    "words": found.words.astype(np.uint32),
                    "codes": found.codes,
                    "query_words": query.words.astype(np.uint32),
                    "query_codes": query.codes,
                },
            )
            made += 1
    return made


def read_words(setup: Setup, codebook: Place, key: str) -> tuple[Words, Words]:
    """Return the words of an image to be found, and those to search with.

    Raises:
        StorageDamaged: they are absent or damaged.
    """
    arrays = read_sealed(words_path(setup, codebook, key))
    try:
        return (
            Words(arrays["words"].astype(np.int64), arrays["codes"]),
            Words(arrays["query_words"].astype(np.int64), arrays["query_codes"]),
        )
    except KeyError as error:
        raise StorageDamaged(f"the words of {key} are incomplete") from error


def words_path(setup: Setup, codebook: Place, key: str) -> Place:
    """Return the file of an image's words; another codebook has another folder."""
    folder = setup.matches.parent / "words" / _digest(codebook)
    return FeatureStore(folder).path(key)


def _vectors(features: Features) -> Float32:
    """Return the descriptors of the keypoints of the highest score, in their order."""
    best = np.argsort(-features.keypoints.score, kind="stable")[:_KEYPOINTS]
    return as_vectors(features.descriptors[np.sort(best)])


def _is_codebook_of(path: Path, card: ModelCard) -> bool:
    """Return whether there is a codebook of this model; one of an older model is not used."""
    if not path.is_file():
        return False
    try:
        codebook = read_codebook(path, card.fingerprint)
    except ModelMismatch:
        return False
    if codebook.words.shape[1] != card.dim:
        raise ModelCorrupt(f"{path}: words of {codebook.words.shape[1]}, descriptors of {card.dim}")
    return True


@functools.cache
def _digest(path: Place) -> str:
    """Return the checksum of a sealed file, which is its end."""
    return path.read_bytes()[-64:-48].decode("ascii", errors="replace")


@functools.cache
def _codebook(path: Place, fingerprint: str) -> Codebook:
    return read_codebook(path, fingerprint)
