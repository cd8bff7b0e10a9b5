"""Refuse patches that are cut in another way than the model that a run starts from expects."""

from __future__ import annotations

from pathlib import Path

from matchserve.errors import ModelError
from matchserve.models.card import read_card
from matchserve.types import PatchSpec
from training.data.store.reader import PatchStore
from training.errors import DataError
from training.networks import published


def crop_options(spec: PatchSpec) -> str:
    """Return the options of `data photos` that cut such patches."""
    return f"--magnification {spec.magnification:g} --size {spec.size}"


def refuse_other_crop(source: Path, store: PatchStore) -> None:
    """Refuse a store whose patches differ from those of the model directory `source`.

    A model that averages several domain sizes is not checked: its network reads smaller patches.

    Raises:
        DataError: the message names the options that cut the right patches.
    """
    if not published.is_model(source):
        return
    try:
        card = read_card(source)
    except ModelError:
        return  # reading the weights says what is wrong with it
    if published.DOMAIN_ENTRY in card.recipe or card.patch == store.spec:
        return
    wanted = crop_options(card.patch)
    raise DataError(
        f"{store.path}: its patches were cut with {crop_options(store.spec)}, but {source.name} "
        f"needs {wanted}: make the store again with `python -m training data photos PHOTOS -o "
        f"STORE {wanted}`, or cut it anew with `python -m training data recrop {store.path} PHOTOS "
        f"-o STORE {wanted}`"
    )
