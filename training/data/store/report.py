"""Report the contents of stores: counts, class sizes, scenes and difficulty."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from matchserve.files import write_text_whole
from matchserve.models.handcrafted import HandcraftedDescriptor
from training.data.photos.views import split_view_name
from training.data.store.difficulty import pairs_fpr95
from training.data.store.notes import read_notes
from training.data.store.pairs import PatchPairs, sample_pairs
from training.data.store.reader import PatchStore

REPORT_FILE = "report.json"
PAIRS = 20_000


@dataclass(frozen=True, slots=True)
class StoreReport:
    """The contents of one store; FPR95 values are shares of 1."""

    classes: int
    patches: int
    scenes: int
    images: int
    size: int
    magnification: float
    class_sizes: dict[str, int]
    sift_fpr95: float
    sift_fpr95_by_level: dict[str, float]

    def __str__(self) -> str:
        sizes = ", ".join(f"{size}: {count}" for size, count in self.class_sizes.items())
        lines = [
            f"{self.classes} classes, {self.patches} patches, {self.scenes} scenes, "
            f"{self.images} images; {self.size} px, K = {self.magnification:g}",
            f"classes by number of patches: {sizes}",
            f"SIFT FPR95: {100 * self.sift_fpr95:.2f} % ({PAIRS} pairs)",
        ]
        for level, value in self.sift_fpr95_by_level.items():
            lines.append(f"  photograph against {level} view: {100 * value:.2f} %")
        return "\n".join(lines)


def report_store(path: Path) -> StoreReport:
    """Measure the store at `path` and write the report to its `report.json`.

    Raises:
        DataError: there is no readable store.
    """
    store = PatchStore.open(path)
    sift = HandcraftedDescriptor("sift", patch=store.spec)
    counts = np.bincount(store.class_sizes)
    report = StoreReport(
        classes=len(store),
        patches=store.patch_count,
        scenes=len(np.unique(store.class_scenes)),
        images=len(np.unique(store.sources)),
        size=store.spec.size,
        magnification=store.spec.magnification,
        class_sizes={str(n): int(counts[n]) for n in np.flatnonzero(counts)},
        sift_fpr95=pairs_fpr95(store, sample_pairs(store, PAIRS), sift),
        sift_fpr95_by_level=_by_level(store, sift),
    )
    text = json.dumps({**asdict(report), "digest": store.digest}, indent=1)
    write_text_whole(path / REPORT_FILE, text + "\n")
    return report


def _by_level(store: PatchStore, sift: HandcraftedDescriptor) -> dict[str, float]:
    """Return SIFT's FPR95 on pairs of photograph and view, for each level of the views."""
    levels = read_notes(store.path).get("levels", [])
    if not levels:
        return {}
    view_of = np.array([split_view_name(name)[1] for name in store.images])[store.sources]
    owner = np.repeat(np.arange(len(store.offsets) - 1), np.diff(store.offsets))
    rates: dict[str, float] = {}
    for level in dict.fromkeys(levels):
        numbers = [index for index, name in enumerate(levels, start=1) if name == level]
        right = np.flatnonzero(np.isin(view_of, numbers))
        rng = np.random.default_rng(0)
        right = rng.permutation(right)[: PAIRS // 4]
        # The first patch of a class is the one from the photograph itself.
        left = store.offsets[owner[right]]
        shuffled = np.roll(right, 1)
        is_other = owner[shuffled] != owner[right]
        if not is_other.any():
            continue
        pairs = PatchPairs(
            np.concatenate([left, left[is_other]]),
            np.concatenate([right, shuffled[is_other]]),
            np.arange(len(right) + int(is_other.sum())) < len(right),
        )
        rates[level] = pairs_fpr95(store, pairs, sift)
    return rates


def scene_table(path: Path) -> str:
    """Return a table of the classes and patches of the twenty largest scenes."""
    store = PatchStore.open(path)
    classes = np.bincount(store.class_scenes, minlength=len(store.scenes))
    patches = np.bincount(store.class_scenes, store.class_sizes, len(store.scenes))
    order = np.argsort(-classes, kind="stable")
    lines = [f"  {classes[n]:7d} {int(patches[n]):8d}  {store.scenes[n]}" for n in order[:20]]
    if len(order) > 20:
        lines.append(f"  … and {len(order) - 20} more scenes")
    return "\n".join(["  classes  patches  scene", *lines])


def plot_stores(paths: Sequence[Path], output: Path) -> None:
    """Draw the class sizes, keypoint scales and contrast of stores in one PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    sizes, scales, contrast = figure.subplots(1, 3)
    for path in paths:
        store = PatchStore.open(path)
        counts = np.bincount(store.class_sizes) / len(store)
        sizes.plot(counts, marker="o", label=path.name)
        sigma = store.keypoints[:, 2]
        if np.isfinite(sigma).any():
            octaves = np.log2(sigma[np.isfinite(sigma)])
            scales.hist(octaves, 60, density=True, histtype="step", label=path.name)
        some = np.random.default_rng(0).integers(0, len(store.pixels), 5000)
        spread = store.pixels[np.sort(some)].std(axis=(1, 2))
        contrast.hist(spread, 60, density=True, histtype="step", label=path.name)
    sizes.set(xlabel="patches in a class", ylabel="share of classes")
    scales.set(xlabel="log2 of sigma in pixels", ylabel="density")
    contrast.set(xlabel="standard deviation of a patch, grey levels", ylabel="density")
    sizes.legend()
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=120)
