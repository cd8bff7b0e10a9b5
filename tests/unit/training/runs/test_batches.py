from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from matchserve.models.handcrafted import HandcraftedDescriptor
from tests.unit.training.tiny_runs import tiny
from training.data.photos.synthetic import ensure_synthetic, write_synthetic
from training.data.store.reader import PatchStore
from training.errors import DataError
from training.evaluation.benchmarks import pairs as pairs_benchmark
from training.evaluation.protocol import Options, load_models
from training.runs.augment import (
    AugmentOptions,
    apply_changes,
    augment,
    draw_changes,
    turn_classes,
)
from training.runs.augment import _turned as turned_array
from training.runs.augment import _turned_tensor as turned_tensor
from training.runs.batches import Batches, ahead, pick_members, split_batch
from training.runs.recipe import Source
from training.runs.resample import jitter_matrices, resample
from training.runs.sources import open_source, open_sources
from training.runs.validation import ValidationSet
from training.runtime.randomness import Stream, numpy_stream, torch_stream


def batches(stores: list[PatchStore], **changes: Any) -> Batches:
    given: dict[str, Any] = {
        "stores": stores,
        "shares": [8, 4][: len(stores)],
        "seed": 5,
        "candidates": 2,
        "order": "replacement",
        "augmentation": AugmentOptions(turns="none"),
    }
    return Batches(**(given | changes))


def test_draws_depend_on_seed_and_step_only(stores: list[PatchStore]) -> None:
    one, two = batches(stores), batches(stores)
    for step in (3, 0, 3):
        np.testing.assert_array_equal(one.draw(step).members, two.draw(step).members)
    assert (one.draw(0).members != one.draw(1).members).any()
    assert (one.draw(0).members != batches(stores, seed=6).draw(0).members).any()


def test_rows_are_pairs_of_distinct_classes_in_the_asked_shares(stores: list[PatchStore]) -> None:
    made = batches(stores)
    for step in range(5):
        draw = made.draw(step)
        assert np.bincount(draw.store).tolist() == [8, 4]
        assert (draw.members[:, 0] != draw.members[:, 1]).all()
        for number in (0, 1):
            rows = draw.members[draw.store == number]
            classes = np.searchsorted(stores[number].offsets, rows, side="right") - 1
            assert (classes[:, 0] == classes[:, 1]).all()
            assert len(set(classes[:, 0])) == len(rows)
        loaded = made.prepare(step)
        first = stores[draw.store[0]].patches(draw.members[0])
        torch.testing.assert_close(loaded[0], torch.from_numpy(first).float())


def test_epoch_order_visits_every_class_once(stores: list[PatchStore]) -> None:
    made = batches(stores[:1], shares=[15], order="epoch")
    seen = np.concatenate([made.draw(s).members[:, 0] // 5 for s in range(10)])
    assert sorted(seen.tolist()) == list(range(150))
    again = np.concatenate([made.draw(s).members[:, 0] // 5 for s in range(10, 20)])
    assert (again != seen).any()
    assert (
        made.draw(3).members.tolist()
        == batches(stores[:1], shares=[15], order="epoch").draw(3).members.tolist()
    )


@pytest.mark.parametrize(("neighbours", "images"), [(5, 3), (4, 4), (100, 1)])
def test_neighbours_come_from_few_images(
    stores: list[PatchStore], neighbours: int, images: int
) -> None:
    # Ten images of 15 classes each.
    store = replace(stores[0], sources=np.repeat(np.arange(10, dtype=np.int32), 75))
    made = batches([store], shares=[15], order="neighbours", neighbours=neighbours)
    seen = set()
    for step in range(40):
        members = made.draw(step).members
        classes = members[:, 0] // 5
        assert len(set(classes.tolist())) == 15
        per_image = np.bincount(classes // 15, minlength=10)
        assert (per_image > 0).sum() == images
        assert per_image.max() <= neighbours
        seen |= set(classes.tolist())
    assert len(seen) > 120
    np.testing.assert_array_equal(made.draw(7).members, made.draw(7).members)


def test_neighbours_fill_the_batch_when_images_are_few(stores: list[PatchStore]) -> None:
    store = replace(stores[0], sources=np.repeat(np.arange(10, dtype=np.int32), 75))
    made = batches([store], shares=[90], order="neighbours", neighbours=3)
    classes = made.draw(0).members[:, 0] // 5
    assert len(set(classes.tolist())) == 90
    assert np.bincount(classes // 15, minlength=10).min() >= 3


def test_mixed_order_takes_half_from_few_images_and_half_from_all(stores: list[PatchStore]) -> None:
    # Ten images of 15 classes each; the smaller half of 17 fits into one image's eight.
    store = replace(stores[0], sources=np.repeat(np.arange(10, dtype=np.int32), 75))
    made = batches([store], shares=[17], order="mixed", neighbours=8)
    spread = []
    for step in range(40):
        classes = made.draw(step).members[:, 0] // 5
        assert len(set(classes.tolist())) == 17
        assert len(set((classes[:8] // 15).tolist())) == 1
        spread.append(len(set((classes[8:] // 15).tolist())))
    # Nine of 150 classes at random are of six images out of ten, give or take.
    assert 5 < np.mean(spread) < 7
    np.testing.assert_array_equal(made.draw(7).members, made.draw(7).members)


def test_mixed_order_takes_several_images_where_one_may_not_give_half(
    stores: list[PatchStore],
) -> None:
    store = replace(stores[0], sources=np.repeat(np.arange(10, dtype=np.int32), 75))
    made = batches([store], shares=[18], order="mixed", neighbours=3)
    near = made.draw(0).members[:9, 0] // 5 // 15
    assert sorted(np.bincount(near)[np.unique(near)].tolist()) == [3, 3, 3]


def test_mixed_order_can_take_every_class(stores: list[PatchStore]) -> None:
    made = batches(stores[:1], shares=[150], order="mixed", neighbours=3)
    classes = made.draw(0).members[:, 0] // 5
    assert sorted(classes.tolist()) == list(range(150))


def test_too_few_classes_is_an_error(stores: list[PatchStore]) -> None:
    with pytest.raises(DataError, match="at least 200 classes"):
        batches(stores[:1], shares=[200])


def test_members_are_distinct_and_copies_flagged() -> None:
    sizes = np.array([2, 3, 7])
    picked, copies = pick_members(sizes, 4, np.random.default_rng(0))
    assert copies.tolist() == [[False] * 2 + [True] * 2, [False] * 3 + [True], [False] * 4]
    for row, copy, size in zip(picked, copies, sizes, strict=True):
        originals = row[~copy]
        assert len(set(originals)) == len(originals)
        assert row.max() < size


def test_shares() -> None:
    assert split_batch([1, 1], 9) == [5, 4]
    assert split_batch([3, 1], 8) == [6, 2]
    assert split_batch([1, 1, 1], 10) == [4, 3, 3]


@pytest.mark.parametrize("workers", [1, 2, 3, 9])
def test_ahead_yields_every_step_in_order(workers: int) -> None:
    found = [(step, value) for step, value, _ in ahead(lambda s: s * s, 2, 6, workers=workers)]
    assert found == [(2, 4), (3, 9), (4, 16), (5, 25)]
    assert list(ahead(lambda s: s, 3, 3)) == []


def test_augmentation_is_a_function_of_its_generator(stores: list[PatchStore]) -> None:
    made = batches(
        stores, augmentation=AugmentOptions(rotation_deg=9, scale=0.1, gain=0.1, noise=3)
    )
    torch.testing.assert_close(made.prepare(4), made.prepare(4), rtol=0, atol=0)
    assert float(made.prepare(4).max()) <= 255


@pytest.mark.parametrize(("turns", "kinds"), [("rot_flip", 8), ("transpose_flip", 4)])
def test_turns_are_the_same_for_both_patches(turns: str, kinds: int) -> None:
    rng = np.random.default_rng(0)
    patch = rng.integers(0, 256, (6, 6), np.uint8)
    patches = np.broadcast_to(patch, (300, 2, 6, 6)).copy()
    options = AugmentOptions.model_validate({"turns": turns})
    turned = augment(patches, options, rng)[:, :, 0].numpy()
    np.testing.assert_array_equal(turned[:, 0], turned[:, 1])
    assert len({t.tobytes() for t in turned[:, 0]}) == kinds
    assert sorted(turned[0, 0].ravel()) == sorted(patch.ravel())


@pytest.mark.parametrize(
    ("name", "amount"),
    [
        ("rotation_deg", 15.0),
        ("scale", 0.2),
        ("aspect", 0.2),
        ("shift", 0.1),
        ("gain", 0.3),
        ("bias", 30.0),
        ("gamma", 0.3),
        ("noise", 20.0),
    ],
)
def test_jitter_is_each_patchs_own(name: str, amount: float) -> None:
    rng = np.random.default_rng(0)
    patch = rng.integers(60, 196, (16, 16), np.uint8)
    patches = np.broadcast_to(patch, (20, 2, 16, 16)).copy()
    made = augment(patches, AugmentOptions(turns="none", **{name: amount}), rng)
    assert float((made[:, 0] - made[:, 1]).abs().amax((1, 2, 3)).min()) > 0.01


def test_resampling_by_a_quarter_turn_is_exact() -> None:
    patch = torch.arange(64.0).view(1, 1, 8, 8)
    quarter = torch.tensor([[[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0]]])
    turned = resample(patch, quarter)
    candidates = [torch.rot90(patch, k, (2, 3)) for k in (1, 3)]
    assert any(torch.allclose(turned, c, atol=1e-4) for c in candidates)


def test_resampling_equals_the_grid_of_torch() -> None:
    rng = np.random.default_rng(3)
    patches = torch.from_numpy(rng.integers(0, 256, (1100, 1, 12, 12), np.uint8))
    matrices = torch.from_numpy(
        jitter_matrices(
            1100, rng, rotation_deg=20, scale=0.2, aspect=0.1, shift=0.1, extra_turn=np.zeros(1100)
        )
    )
    grid = torch.nn.functional.affine_grid(matrices, [1100, 1, 12, 12], align_corners=False)
    wanted = torch.nn.functional.grid_sample(
        patches.float(), grid, padding_mode="border", align_corners=False
    )
    torch.testing.assert_close(resample(patches, matrices), wanted, rtol=0, atol=0.01)


@pytest.mark.parametrize("turns", ["rot_flip", "transpose_flip"])
def test_a_device_turns_patches_as_the_cpu_does(turns: str) -> None:
    patches = np.random.default_rng(1).integers(0, 256, (3, 2, 5, 5), np.uint8)
    for first in range(4 if turns == "rot_flip" else 2):
        for second in range(3 if turns == "rot_flip" else 2):
            by_torch = turned_tensor(torch.from_numpy(patches), first, second, turns)
            by_numpy = turned_array(patches, first, second, turns)
            np.testing.assert_array_equal(by_torch.numpy(), by_numpy)
            drawn = np.tile([first, second], (3, 1))
            whole = turn_classes(torch.from_numpy(patches), drawn, turns)
            np.testing.assert_array_equal(whole.numpy(), by_numpy)


def test_a_part_of_a_batch_is_augmented_as_in_the_whole() -> None:
    """Each process draws the changes of the whole batch, but applies only its own."""
    patches = np.random.default_rng(0).integers(0, 256, (10, 3, 8, 8), np.uint8)
    copies = np.zeros((10, 3), bool)
    copies[::2, 2] = True
    options = AugmentOptions(rotation_deg=9, scale=0.1, gain=0.1, gamma=0.2, bias=4, noise=3)
    options = options.model_copy(update={"blur": 0.5, "curve": 0.5, "shading": 0.2, "invert": 0.5})
    given: dict[str, Any] = {"copies": copies, "copy_rotation_deg": 15.0}
    whole = augment(patches, options, np.random.default_rng(7), **given)
    for own in (slice(0, 5), slice(5, 10), slice(4, 6)):
        rng = np.random.default_rng(7)
        changes = draw_changes((10, 3, 8), options, rng, own=own, **given)
        part = apply_changes(torch.from_numpy(patches[own]), changes)
        torch.testing.assert_close(part, whole[own], rtol=0, atol=0)


def test_generated_positives_are_turned_and_originals_are_not() -> None:
    ramp = np.tile(np.arange(0, 256, 8, dtype=np.uint8), (32, 1))
    patches = np.broadcast_to(ramp, (40, 2, 32, 32)).copy()
    turned = np.zeros((40, 2), bool)
    turned[:, 1] = True
    made = augment(
        patches,
        AugmentOptions(turns="none"),
        np.random.default_rng(0),
        copies=turned,
        copy_rotation_deg=15.0,
    )
    torch.testing.assert_close(made[:, 0, 0], torch.from_numpy(patches[:, 0]).float())
    # On a ramp along x, a turn by t tilts the gradient to (cos t, sin t).
    centre = made[:, 1, 0, 12:20, 12:20]
    gx = (centre[:, :, 1:] - centre[:, :, :-1]).mean((1, 2))
    gy = (centre[:, 1:] - centre[:, :-1]).mean((1, 2))
    angles = torch.rad2deg(torch.atan2(gy, gx)).abs()
    assert float(angles.max()) < 15.5
    assert float(angles.max()) > 8


def test_streams_are_independent() -> None:
    drawn = {numpy_stream(0, step, s).integers(1 << 60) for step in range(5) for s in Stream}
    assert len(drawn) == 5 * len(Stream)
    one = torch.rand(3, generator=torch_stream(1, 2, Stream.LOSS))
    assert one.tolist() == torch.rand(3, generator=torch_stream(1, 2, Stream.LOSS)).tolist()


def test_synthetic_stores_repeat_and_differ(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_synthetic(tmp_path / name, seed=7, classes=120)
    write_synthetic(tmp_path / "c", seed=8, classes=120)
    digests = [PatchStore.open(tmp_path / n).digest for n in "abc"]
    assert digests[0] == digests[1] != digests[2]
    store = PatchStore.open(tmp_path / "a")
    assert (len(store), len(store.scenes), store.patch_count) == (120, 2, 600)
    with pytest.raises(DataError, match="SEED:CLASSES"):
        ensure_synthetic("synthetic:x:3", tmp_path)


def test_synthetic_is_hard_for_sift_and_not_hopeless(tmp_path: Path) -> None:
    store = PatchStore.open(ensure_synthetic("synthetic:5:400", tmp_path))
    sift = HandcraftedDescriptor("sift", store.spec)
    rate = ValidationSet.of(store, 2000).fpr95(sift.describe_patches)
    assert 0.1 < rate < 0.5


def test_validation_measures_the_pairs_of_the_benchmark(
    stores: list[PatchStore], tmp_path: Path
) -> None:
    sift = HandcraftedDescriptor("sift", stores[0].spec)
    rate = ValidationSet.of(stores[0], 600).fpr95(sift.describe_patches)
    options = Options(limit=600, cache=tmp_path)
    result = pairs_benchmark.run(load_models([], options), [stores[0].path], options)
    assert 0 < rate == result.models["sift"].figures["fpr95"]


def test_sources(tmp_path: Path) -> None:
    path = ensure_synthetic("synthetic:5:250", tmp_path)
    only = open_source(Source(path=str(path), scenes=("texture-1",)), tmp_path)
    without = open_source(Source(path=str(path), without_scenes=("texture-1",)), tmp_path)
    assert len(only) == 100
    assert len(without) == 150
    with pytest.raises(DataError, match="the selected scenes and labels contain no class"):
        open_source(
            Source(path=str(path), scenes=("texture-1",), without_scenes=("texture-1",)), tmp_path
        )
    from matchserve.types import PatchSpec

    write_synthetic(tmp_path / "small", seed=1, classes=5, spec=PatchSpec(size=16))
    with pytest.raises(DataError, match="but those of"):
        open_sources([Source(path=str(path)), Source(path=str(tmp_path / "small"))], tmp_path)


def test_recipe_shares_reach_the_batches() -> None:
    recipe = tiny(data={"train": [{"path": "a", "weight": 3}, {"path": "b"}]})
    assert split_batch([s.weight for s in recipe.data.train], recipe.run.batch) == [9, 3]
