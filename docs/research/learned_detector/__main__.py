"""Measure detectors of our own beside DoG, and train those that choose among DoG keypoints.

    python docs/research/learned_detector data TRAIN WORKSPACE FOLDER
    python docs/research/learned_detector train FOLDER NAME [STEPS]
    python docs/research/learned_detector measure FOLDER PART,PART... NAME... [--model=MODEL]

`data` makes, in FOLDER, what is learned from and what is measured on, both of TRAIN; WORKSPACE has
the reconstructions of `python -m training data scenes`. `learned` is a run of
`python -m training detector train` in FOLDER/learned. The parts are `ms` (time to detect) and
those of `measure.PARTS`. The names are `dog` and `contrast` (the two selections that are shipped),
`dog-weak` (with keypoints of less contrast), `product` (contrast x sigma, as `dog`, among more
candidates), `scored-same`, `scored-matched` and `scored-scalars` (networks that choose among DoG
keypoints; the last one reads no patches) and `learned`. A number after a colon is the candidates
for each keypoint, or the sigma of a level in its pixels: `scored-matched:2`, `learned:2.4`.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path

import cv2
import finding
import measure
import pairs
import scored
import torch
from safetensors.torch import load_file, save_file

from matchserve.models.registry import load_descriptor
from matchserve.vision.keypoints import detect as detect_dog
from training.detector.loop import read_network
from training.errors import DataError

STEPS = 1500


def make_data(train: Path, workspace: Path, folder: Path) -> None:
    """Write the data of training and of measuring."""
    (folder / "candidates").mkdir(parents=True)
    measure.write_held_out(train, workspace, folder)
    model = load_descriptor("compact", threads=1)
    for number, pair in enumerate(pairs.training_pairs(train, views=50, modal=12)):
        scored.write_pair(pair, model, folder / "candidates" / f"{number:04d}.npz")


def train(folder: Path, name: str, steps: int | None = None) -> None:
    """Train one network that chooses among DoG keypoints, and write its weights."""
    torch.manual_seed(0)
    reward = name.partition("-")[2]
    start = time.process_time()
    net = scored.ScoreNet(reads_patches=reward != "scalars")
    files = sorted((folder / "candidates").glob("*.npz"))
    scored.train(files, net, steps or STEPS, "matched" if reward == "matched" else "same")
    save_file(
        {k: v.contiguous() for k, v in net.state_dict().items()}, folder / f"{name}.safetensors"
    )
    count = sum(each.numel() for each in net.parameters())
    print(f"{name}: {count} weights, {time.process_time() - start:.0f} CPU-s")  # noqa: T201


def detector(folder: Path, name: str) -> measure.Detect:
    """Return the detector of a name."""
    kind, _, number = name.partition(":")
    if kind in ("dog", "contrast"):
        return partial(measure.detect_selected, detect_dog, "repeatable" if kind == "dog" else kind)
    if kind == "dog-weak":
        return partial(measure.detect_weak, detect_dog)
    if kind == "product":
        return partial(scored.detect, scored.ScoreNet().eval(), float(number or 2))
    if kind.startswith("learned"):
        sigma = float(number or finding.SIGMA)
        return partial(finding.find, read_network(folder / kind)[0], sigma)
    weights = folder / f"{kind}.safetensors"
    if not weights.is_file():
        raise DataError(f"{weights}: not there; train it first")
    net = scored.ScoreNet(reads_patches=not kind.endswith("scalars"))
    net.load_state_dict(load_file(weights))
    return partial(scored.detect, net.eval(), float(number or 2))


def compare(folder: Path, parts: list[str], names: list[str], model: str) -> None:
    """Print one row for each detector, with the descriptors of a model."""
    detectors = {name: detector(folder, name) for name in names}
    is_timed = "ms" in parts
    milliseconds = measure.processor_ms(detectors, folder) if is_timed else {}
    measured = [part for part in parts if part != "ms"]
    for number, (name, detect) in enumerate(detectors.items()):
        shown = measure.measure(detect, folder, measured, model)
        shown |= {"CPU ms": milliseconds[name]} if is_timed else {}
        if not number:
            head = " | ".join(shown)
            print(f"| detector | {head} |\n" + "|---" * (len(shown) + 1) + "|")  # noqa: T201
        print(measure.table_row(name, shown), flush=True)  # noqa: T201


def main() -> None:
    """Run a command."""
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    command, *rest = sys.argv[1:]
    if command == "data":
        make_data(*(Path(each) for each in rest))
    elif command == "train":
        train(Path(rest[0]), rest[1], *(int(each) for each in rest[2:]))
    else:
        models = [word.partition("=")[2] for word in rest if word.startswith("--model=")]
        names = [word for word in rest[2:] if not word.startswith("--")]
        compare(Path(rest[0]), rest[1].split(","), names, (models or ["compact"])[-1])


if __name__ == "__main__":
    main()
