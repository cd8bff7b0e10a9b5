from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from matchserve import defaults
from matchserve.collections.words import _is_codebook_of
from matchserve.errors import ModelCorrupt, ModelMismatch
from matchserve.models.card import read_card
from matchserve.models.registry import shipped_models_dir
from matchserve.retrieval.asmk import Words, aggregate
from matchserve.retrieval.codebook import (
    WORDS,
    WORDS_FILE,
    Codebook,
    as_vectors,
    read_codebook,
    train_codebook,
    write_codebook,
)
from matchserve.retrieval.lists import InvertedLists
from matchserve.sealed import write_sealed

Rows = np.ndarray


def unit(rng: np.random.Generator, count: int, dim: int = 32) -> Rows:
    rows = rng.normal(size=(count, dim)).astype(np.float32)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


@pytest.fixture
def codebook() -> Codebook:
    return train_codebook(unit(np.random.default_rng(0), 8000), "f", words=512)


def test_codebooks_are_read_as_written(codebook: Codebook, tmp_path: Path) -> None:
    path = tmp_path / "words.npz"
    write_codebook(path, codebook)
    assert np.allclose(read_codebook(path, "f").words, codebook.words, atol=1e-3)
    with pytest.raises(ModelMismatch, match="not g"):
        read_codebook(path, "g")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ModelCorrupt, match=r"words\.npz"):
        read_codebook(path, "f")


@pytest.mark.parametrize(
    "words",
    [
        np.array(["a", "b"]),
        np.full((4, 8), np.nan, np.float32),
        np.ones(8, np.float32),
        np.ones((0, 8), np.float32),
    ],
    ids=["text", "not numbers", "one row", "none"],
)
def test_words_that_are_none_are_refused(tmp_path: Path, words: np.ndarray) -> None:
    arrays = {"words": words, "fingerprint": np.array("f"), "trained_on": np.array("")}
    write_sealed(tmp_path / WORDS_FILE, arrays)
    with pytest.raises(ModelCorrupt, match=r"words\.npz"):
        read_codebook(tmp_path / WORDS_FILE, "f")


def test_words_of_other_descriptors_are_refused(tmp_path: Path) -> None:
    card = read_card(shipped_models_dir() / defaults.MODEL)
    write_codebook(tmp_path / WORDS_FILE, Codebook(np.ones((4, 8), np.float32), card.fingerprint))
    with pytest.raises(ModelCorrupt, match="words of 8"):
        _is_codebook_of(tmp_path / WORDS_FILE, card)


def test_training_is_repeatable_and_needs_descriptors() -> None:
    rows = unit(np.random.default_rng(0), 500)
    first, second = (train_codebook(rows, "f", words=1000) for _ in range(2))
    assert np.array_equal(first.words, second.words)
    assert len(first) == 500 // 8
    with pytest.raises(ModelMismatch):
        train_codebook(rows[:3], "f")


def test_bits_become_unit_vectors() -> None:
    rows = as_vectors(np.array([[0b10000000, 0xFF]], np.uint8))
    assert rows.shape == (1, 16)
    assert np.linalg.norm(rows) == pytest.approx(1)
    assert (rows[0, :2] == [0.25, -0.25]).all()


def test_words_are_signs_of_summed_residuals(codebook: Codebook) -> None:
    rows = unit(np.random.default_rng(1), 100)
    found, query = aggregate(rows, codebook)
    nearest = np.argmin(((rows[:, None] - codebook.words[None]) ** 2).sum(axis=2), axis=1)
    assert np.array_equal(found.words, np.unique(nearest))
    for word, code in zip(found.words, found.codes, strict=True):
        total = (rows[nearest == word] - codebook.words[word]).sum(axis=0)
        assert np.array_equal(np.unpackbits(code), total > 0)
    assert len(query) > len(found)


def naive_scores(images: list[Words], query: Words, words: int, bits: int) -> Rows:
    """The formula of the method, by plain loops."""
    frequency = np.zeros(words)
    for image in images:
        frequency[image.words] += 1
    idf = np.log((1 + len(images)) / np.maximum(frequency, 1))
    scores = []
    for image in images:
        codes = dict(zip(image.words.tolist(), image.codes, strict=True))
        total = 0.0
        for word, code in zip(query.words.tolist(), query.codes, strict=True):
            if word in codes:
                distance = int(np.unpackbits(code ^ codes[word]).sum())
                similarity = 1 - 2 * distance / bits
                total += idf[word] ** 2 * similarity**3 * (similarity > 0.25)
        scores.append(total / np.sqrt((idf[image.words] ** 2).sum()))
    return np.array(scores)


def test_scores_equal_the_formula(codebook: Codebook) -> None:
    rng = np.random.default_rng(2)
    scene = unit(rng, 200)
    images, queries = [], []
    for number in range(12):
        own = unit(rng, 150)
        noise = 0.02 * rng.normal(size=(200, 32))
        seen = (scene + noise)[: 200 if number < 4 else 0]
        found, query = aggregate(np.concatenate([own, seen.astype(np.float32)]), codebook)
        images.append(found)
        queries.append(query)
    lists = InvertedLists(len(codebook), 32)
    assert [lists.add(image) for image in images] == list(range(12))
    for query in queries[:3]:
        expected = naive_scores(images, query, len(codebook), 32)
        assert np.allclose(lists.scores(query), expected, rtol=1e-6)
    ranked = np.argsort(-lists.scores(queries[0]))
    assert set(ranked[:4].tolist()) == {0, 1, 2, 3}


def test_images_without_keypoints(codebook: Codebook) -> None:
    found, query = aggregate(np.zeros((0, 32), np.float32), codebook)
    lists = InvertedLists(len(codebook), 32)
    lists.add(found)
    assert lists.scores(query).tolist() == [0.0]
    other, _ = aggregate(unit(np.random.default_rng(0), 50), codebook)
    lists.add(other)
    assert lists.scores(query).tolist() == [0.0, 0.0]


def test_shipped_codebooks_belong_to_their_models() -> None:
    """Train one again after the model has changed: `python -m training retrieval train`."""
    shipped = sorted(shipped_models_dir().glob(f"*/{WORDS_FILE}"))
    assert defaults.MODEL in [path.parent.name for path in shipped]
    for path in shipped:
        card = read_card(path.parent)
        codebook = read_codebook(path, card.fingerprint)
        assert codebook.words.shape == (WORDS, card.dim)
        assert "photographs" in codebook.trained_on
