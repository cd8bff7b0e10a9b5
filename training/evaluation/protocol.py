"""One protocol for all models of a run, written into its result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from matchserve.models.card import ModelCard
from matchserve.models.descriptor import Descriptor
from matchserve.models.handcrafted import NAMES as HANDCRAFTED
from matchserve.models.registry import load_descriptor
from training.errors import DataError

DEFAULT_CACHE = Path("runs/predictions")


@dataclass(frozen=True, slots=True)
class Options:
    """What a run may choose; the same for every model in it.

    `threshold_px` is that of the robust estimator of homographies and poses. `limit` bounds the
    number of images or pairs of the benchmarks that could take any number.
    """

    max_keypoints: int = 2048
    ratio: float | None = None
    threshold_px: float = 3.0
    pattern: str = "*"
    seed: int = 0
    limit: int | None = None
    split: str = "a"
    threads: int | None = None
    cache: Path = DEFAULT_CACHE
    workspace: Path = field(default_factory=lambda: Path("runs/evaluation"))

    def protocol(self, *names: str) -> dict[str, Any]:
        """The named choices, as plain values for the result file."""
        chosen = asdict(self)
        return {name: chosen[name] for name in names}


@dataclass(frozen=True, slots=True)
class Model:
    """A descriptor, the name and the place it was asked for by, and what identifies its content."""

    name: str
    descriptor: Descriptor
    stamp: str
    location: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class ModelResult:
    """Figures of one model, and what they are means of.

    `samples` holds one value a unit (pair, sequence, scene) for each figure that is a mean over
    units; `units` and `groups` name them (a group is what must be resampled together). `curves`
    are for drawing: {label: {"x": [...], "y": [...]}}.
    """

    figures: Mapping[str, float]
    units: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    samples: Mapping[str, list[float]] = field(default_factory=dict)
    curves: Mapping[str, Mapping[str, list[float]]] = field(default_factory=dict)
    stamp: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class BenchmarkResult:
    """A whole run: protocol, data digest, and a result for each model."""

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
    """A function from models and data to a result."""

    def __call__(
        self, models: Iterable[Model], data: list[Path], options: Options
    ) -> BenchmarkResult:
        """Measure every model on `data`."""
        ...


def load_models(names: Iterable[str], options: Options) -> list[Model]:
    """Load the models asked for, and `sift` and `rootsift` before them.

    Raises:
        UnknownModel: no model of that name.
        ModelError: it cannot be used.
    """
    wanted = list(dict.fromkeys([*HANDCRAFTED, *names]))
    loaded = []
    for name in wanted:
        descriptor = load_descriptor(name, threads=options.threads)
        card = descriptor.card
        loaded.append(Model(_short(name, card.name), descriptor, model_stamp(card), name))
    names_used = [model.name for model in loaded]
    for name in names_used:
        if names_used.count(name) > 1:
            raise DataError(f"two models are named {name}")
    return loaded


def model_stamp(card: ModelCard) -> str:
    """What identifies a model's content: of its file, or the built-in's version."""
    return card.sha256 or f"{card.name}-{card.version}"


def digest_files(paths: Iterable[Path]) -> str:
    """SHA-256 over the names and contents of files, in the order given."""
    hasher = hashlib.sha256()
    for path in paths:
        hasher.update(path.name.encode())
        try:
            hasher.update(hashlib.sha256(path.read_bytes()).digest())
        except OSError as error:
            raise DataError(f"{path}: not readable, {error.strerror}") from error
    return hasher.hexdigest()


def stamp_of(**parts: Any) -> str:
    """A short name for a combination of things that determine a prediction."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _short(asked: str, card_name: str) -> str:
    """The card's name, unless two directories may hold a model of that name."""
    return card_name if "/" not in asked else Path(asked).resolve().name
