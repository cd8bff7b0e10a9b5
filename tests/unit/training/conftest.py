import pytest
import torch

from training.data.photos.synthetic import ensure_synthetic
from training.data.store.reader import PatchStore


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Tiny tensors gain nothing from threads, and tests run beside each other.

    For each test anew, because commands set the number too.
    """
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def heaps_kept(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Commands tell the C library to return nothing: for a process of their own, not for this."""
    calls: list[str] = []
    monkeypatch.setattr("matchserve.memory.keep_freed", lambda: calls.append("kept"))
    return calls


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[PatchStore]:
    """Two stores of 150 generated classes."""
    folder = tmp_path_factory.mktemp("stores")
    return [PatchStore.open(ensure_synthetic(f"synthetic:{s}:150", folder)) for s in (1, 2)]
