"""Find and load models: the built-in ones, and those of a models folder."""

from __future__ import annotations

from pathlib import Path

from matchserve.errors import (
    ModelError,
    ModelMismatch,
    ModelMissing,
    ProviderUnavailable,
    UnknownModel,
)
from matchserve.models import handcrafted
from matchserve.models.card import CARD_FILE, ModelCard, is_model_name, read_card
from matchserve.models.descriptor import Descriptor
from matchserve.models.execution import DeviceOptions
from matchserve.models.handcrafted import HandcraftedDescriptor
from matchserve.models.onnx_model import OnnxDescriptor

_PACKAGE = Path(__file__).resolve().parent.parent


def shipped_models_dir() -> Path:
    """Return the folder of the shipped models: in the package, or in a source checkout."""
    installed = _PACKAGE / "shipped_models"
    return installed if installed.is_dir() else _PACKAGE.parent / "models"


def list_models(models_dir: Path | None = None) -> dict[str, ModelCard | ModelError]:
    """Return every model by name, with its card or its error."""
    models: dict[str, ModelCard | ModelError] = {
        name: handcrafted.card(name) for name in handcrafted.NAMES
    }
    for directory in sorted(_models_folder(models_dir).iterdir()):
        if is_model_name(directory.name) and (directory / CARD_FILE).is_file():
            models.setdefault(directory.name, _card_or_error(directory))
    return models


def load_descriptor(
    model: str,
    *,
    models_dir: Path | None = None,
    provider: str = "auto",
    threads: int | None = None,
    devices: DeviceOptions | None = None,
) -> Descriptor:
    """Load a descriptor by name, or from a model directory given as a path.

    A path contains a separator (`./mine`, `/srv/models/x`); a name without one is only looked up
    in the models folder.

    Raises:
        UnknownModel: there is no model of that name.
        ModelError: the model cannot be used.
    """
    if model in handcrafted.NAMES:
        if provider not in ("auto", "cpu"):
            raise ProviderUnavailable(f"{model!r} is computed by OpenCV, on the CPU only")
        return HandcraftedDescriptor(model)
    if "/" in model and (Path(model) / CARD_FILE).is_file():
        return OnnxDescriptor(model, provider=provider, threads=threads, devices=devices)
    folder = _models_folder(models_dir)
    if not is_model_name(model) or not (folder / model / CARD_FILE).is_file():
        known = ", ".join(list_models(models_dir))
        raise UnknownModel(f"no model named {model[:80]!r}; there are {known}{_path_hint(model)}")
    if isinstance(problem := _card_or_error(folder / model), ModelError):
        raise problem
    return OnnxDescriptor(folder / model, provider=provider, threads=threads, devices=devices)


def _path_hint(model: str) -> str:
    """Say how to name a model directory of the current folder, if that is what is meant."""
    is_directory = is_model_name(model) and (Path(model) / CARD_FILE).is_file()
    return f"; for the folder here write ./{model}" if is_directory else ""


def model_directory(model: str, models_dir: Path | None = None) -> Path | None:
    """Return the directory of a model, or None if it is built in."""
    if model in handcrafted.NAMES:
        return None
    return Path(model) if "/" in model else _models_folder(models_dir) / model


def provider_for(model: str, provider: str) -> str:
    """Return the provider for a model: built-in models run on the CPU whatever was requested."""
    return "auto" if model in handcrafted.NAMES else provider


def _models_folder(models_dir: Path | None) -> Path:
    folder = models_dir or shipped_models_dir()
    if not folder.is_dir():
        raise ModelMissing(f"there is no folder of models at {folder}")
    return folder


def _card_or_error(directory: Path) -> ModelCard | ModelError:
    """Return the card of a model, whose name must be that of its directory, or the error."""
    try:
        card = read_card(directory)
    except ModelError as error:
        return error
    if card.name != directory.name:
        return ModelMismatch(f"the card in {directory.name!r} names the model {card.name!r}")
    return card
