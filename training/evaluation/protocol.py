"""The types of an evaluation: options, models and results; all models share one protocol."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import matchserve
from matchserve import defaults
from matchserve.models.card import ModelCard
from matchserve.models.descriptor import Descriptor
from matchserve.models.handcrafted import NAMES as HANDCRAFTED
from matchserve.models.registry import load_descriptor
from matchserve.options import Views
from matchserve.vision.selection import Selection
from training.errors import DataError

DEFAULT_CACHE = Path("runs/predictions")
Pipeline = Literal["raw", "default", "both"]


@dataclass(frozen=True, slots=True)
class Options:
    """The options of an evaluation, the same for all of its models.

    `threshold_px` is the inlier threshold of the robust estimator. `limit` is the maximum number of
    images or pairs, for benchmarks that can use any number. `pattern` selects sequences by name;
    `split` is that of HPatches. `pipeline` is "raw" for all mutual nearest neighbours,
    "default" for what the service returns by default, or "both", beside OpenCV's SIFT.
    `selection` chooses keypoints in another way than the pipeline does; raw matches are then one
    for each position. `views` is the number of pairs of synthetic views that the default pipeline
    matches, or "auto". `cache` holds predictions, `workspace` temporary files.
    """

    max_keypoints: int = 2048
    ratio: float | None = None
    threshold_px: float = 3.0
    pattern: str = "*"
    seed: int = 0
    limit: int | None = None
    split: str = "a"
    threads: int | None = None
    pipeline: Pipeline = "raw"
    selection: Selection | None = None
    views: Views = defaults.VIEWS
    cache: Path = DEFAULT_CACHE
    workspace: Path = field(default_factory=lambda: Path("runs/evaluation"))

    def protocol(self, *names: str) -> dict[str, Any]:
        """Return the named options as plain values for the result file."""
        chosen = asdict(self)
        return {name: chosen[name] for name in names}


@dataclass(frozen=True, slots=True)
class Model:
    """A descriptor with its name in results, a stamp of its content, and where it was loaded."""

    name: str
    descriptor: Descriptor
    stamp: str
    location: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class ModelResult:
    """The values measured for one model, by the names of `training.metrics.metric`.

    `samples` holds one value per unit (pair, sequence or scene) for each metric that is a mean over
    units. `units` names the units and `groups` the group of each; units of one group are not
    independent and are resampled together. `curves` are for plots: {label: {"x": [...],
    "y": [...]}}. `stamp` identifies the model file.
    """

    figures: Mapping[str, float]
    units: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    samples: Mapping[str, list[float]] = field(default_factory=dict)
    curves: Mapping[str, Mapping[str, list[float]]] = field(default_factory=dict)
    stamp: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class BenchmarkResult:
    """The result of an evaluation: protocol, digest of the data, and the result of each model."""

    benchmark: str
    protocol: Mapping[str, Any]
    digest: str
    models: Mapping[str, ModelResult]


# Keys of protocols in result files and cards written before they were renamed.
_RENAMED_KEYS = {"crowd": "group_size"}


def current_protocol(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored protocol with the key names of today."""
    return {_RENAMED_KEYS.get(key, key): value for key, value in protocol.items()}


class Benchmark(Protocol):
    """A function that measures models on data."""

    def __call__(
        self, models: Iterable[Model], data: list[Path], options: Options
    ) -> BenchmarkResult:
        """Measure all models on `data`."""
        ...


def load_models(names: Iterable[str], options: Options) -> list[Model]:
    """Load `sift`, `rootsift` and the named models, in this order.

    A name may also be the path of a run or of a weights file, which need not be exported.

    Raises:
        UnknownModel: there is no model of that name.
        ModelError: a model cannot be loaded.
        DataError: two models have the same name.
    """
    # Imports torch, which the help of the commands does not need.
    from training.evaluation.run_model import RunDescriptor, is_run

    loaded = []
    for name in dict.fromkeys([*HANDCRAFTED, *names]):
        if is_run(name):
            trained: Descriptor = RunDescriptor(Path(name))
            loaded.append(Model(trained.card.name, trained, model_stamp(trained.card), name))
            continue
        descriptor = load_descriptor(name, threads=options.threads)
        card = descriptor.card
        loaded.append(Model(_result_name(name, card.name), descriptor, model_stamp(card), name))
    names_used = [model.name for model in loaded]
    for name in names_used:
        if names_used.count(name) > 1:
            raise DataError(f"two models are named {name}")
    return loaded


def model_stamp(card: ModelCard) -> str:
    """Return what identifies a model: the SHA-256 of its file, or a built-in's version."""
    return card.sha256 or f"{card.name}-{card.version}"


def digest_files(paths: Iterable[Path]) -> str:
    """Return the SHA-256 of the names and contents of files, in the given order."""
    hasher = hashlib.sha256()
    for path in paths:
        hasher.update(path.name.encode())
        try:
            hasher.update(hashlib.sha256(path.read_bytes()).digest())
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    return hasher.hexdigest()


@functools.cache
def matching_code() -> str:
    """Return the SHA-256 of the code that finds and matches keypoints: it decides predictions."""
    package = Path(matchserve.__file__).parent
    folders = (package / "vision", package / "pipeline")
    files = (path for folder in folders for path in sorted(folder.glob("*.py")))
    return digest_files([package / "matcher.py", *files])


def stamp_of(**parts: Any) -> str:
    """Return a short hash of everything that determines a prediction."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _result_name(location: str, card_name: str) -> str:
    """Return the name of a model in results: that of its directory, or that in its card.

    The directory counts if the model was given by its path.

    Two directories may hold models with cards of the same name.
    """
    return card_name if "/" not in location else Path(location).resolve().name
