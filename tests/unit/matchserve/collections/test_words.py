from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from matchserve.collections import words
from matchserve.collections.words import codebook_path, make_words, read_words, words_path
from matchserve.collections.work import Setup, describe_images
from matchserve.errors import StorageDamaged
from matchserve.matcher import Options
from matchserve.models.card import read_card
from matchserve.retrieval.codebook import Codebook, write_codebook
from matchserve.types import Features, Keypoints


@pytest.fixture
def setup(tiny_model: Path, tmp_path: Path) -> Setup:
    return Setup(tmp_path / "features", tmp_path / "matches", f"{tiny_model}/", Options())


def test_the_codebook_of_the_model_is_used_unless_it_is_of_another_one(
    setup: Setup, tiny_model: Path, scene: Path
) -> None:
    card = read_card(tiny_model)
    image = scene / "images" / "0000.png"
    (described,) = describe_images(setup, [("a", image)])
    images = [(described.key, image)]
    shipped, centres = tiny_model / "words.npz", np.eye(16, dtype=np.float32)
    write_codebook(shipped, Codebook(centres, card.fingerprint))
    assert codebook_path(setup, images, card) == shipped
    write_codebook(shipped, Codebook(centres, "another"))
    own = codebook_path(setup, images, card)
    assert own.name == "codebook.npz"
    assert make_words(setup, own, card.fingerprint, images) == 1
    assert make_words(setup, own, card.fingerprint, images) == 0
    found, query = read_words(setup, own, described.key)
    assert 0 < len(found) <= len(query)


def test_damaged_words_are_made_again(setup: Setup, tiny_model: Path, scene: Path) -> None:
    card = read_card(tiny_model)
    image = scene / "images" / "0000.png"
    (described,) = describe_images(setup, [("a", image)])
    codebook = tiny_model / "words.npz"
    write_codebook(codebook, Codebook(np.eye(16, dtype=np.float32), card.fingerprint))
    images = [(described.key, image)]
    make_words(setup, codebook, card.fingerprint, images)
    path = words_path(setup, codebook, described.key)
    before = path.read_bytes()
    for sixteenth in range(16):
        path.write_bytes(before[: len(before) * sixteenth // 16])
        with pytest.raises(StorageDamaged):
            read_words(setup, codebook, described.key)
        assert make_words(setup, codebook, card.fingerprint, images) == 1
        assert path.read_bytes() == before


def test_words_are_those_of_the_best_keypoints() -> None:
    """More keypoints for the geometry must not change what retrieval was measured with."""
    count = words._KEYPOINTS + 500
    score = np.random.default_rng(0).permutation(count).astype(np.float32)
    ones = np.ones(count, np.float32)
    keypoints = Keypoints(np.zeros((count, 2), np.float32), ones, ones, score)
    found = words._vectors(Features(keypoints, score[:, None], "compact", (10, 10)))[:, 0]
    np.testing.assert_array_equal(np.sort(found), np.arange(500, count))
    np.testing.assert_array_equal(found, score[score >= 500])
