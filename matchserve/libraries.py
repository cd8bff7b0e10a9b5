"""Import of optional libraries and their process-wide options."""

from __future__ import annotations

import functools
from typing import Any

from matchserve.errors import ProviderUnavailable

CPU_HINT = "pip install '.[cpu]' -c constraints.txt"
GPU_HINT = "pip install '.[gpu]' -c constraints.txt -c constraints-gpu.txt"
INSTALL_HINT = f"{CPU_HINT}, or for a CUDA device: {GPU_HINT}, from the root of the clone"
"""How to install what runs models and matches; nothing is published, so from a clone."""

COLMAP_HINT = "pip install -e '.[cpu,colmap]' -c constraints.txt"
"""How to install what reconstructs scenes and writes HDF5 files."""


LARGE_HINT = "pip install -e '.[cpu,large]' -c constraints.txt"
"""How to install what reads images of any size."""

DASK_HINT = "pip install -e '.[cpu,dask]' -c constraints.txt"
"""How to install Dask, which runs a collection on a cluster."""

S3_HINT = "pip install -e '.[cpu,s3]' -c constraints.txt"
"""How to install what keeps collections in object stores."""


@functools.cache
def import_faiss() -> Any:
    """Import FAISS, which comes with the extra `[cpu]` or `[gpu]`.

    Raises:
        ProviderUnavailable: FAISS is not installed.
    """
    try:
        import faiss
    except ImportError as error:
        raise ProviderUnavailable(f"FAISS is not installed; run: {INSTALL_HINT}") from error
    except RuntimeError as error:  # the GPU build lacks a CUDA library, whose package it names
        raise ProviderUnavailable(f"FAISS does not load: {error}") from error
    # FAISS would not use BLAS for sets this small, which makes it ten times slower.
    faiss.cvar.distance_compute_blas_threshold = 1
    return faiss


@functools.cache
def import_pycolmap() -> Any:
    """Import pycolmap, which comes with the extra `[colmap]`.

    Raises:
        ProviderUnavailable: pycolmap is not installed.
    """
    try:
        import pycolmap
    except ImportError as error:
        raise ProviderUnavailable(f"pycolmap is not installed; run: {COLMAP_HINT}") from error
    return pycolmap


@functools.cache
def import_pyvips() -> Any:
    """Import pyvips, which comes with the extra `[large]`.

    Raises:
        ProviderUnavailable: pyvips is not installed.
    """
    try:
        import pyvips
    except (ImportError, OSError) as error:  # OSError: libvips itself is absent
        raise ProviderUnavailable(f"pyvips is not installed; run: {LARGE_HINT}") from error
    # It would keep decoded regions of earlier operations, which are never asked for again.
    pyvips.cache_set_max(0)
    return pyvips


@functools.cache
def import_h5py() -> Any:
    """Import h5py, which comes with the extra `[colmap]`.

    Raises:
        ProviderUnavailable: h5py is not installed.
    """
    try:
        import h5py
    except ImportError as error:
        raise ProviderUnavailable(f"h5py is not installed; run: {COLMAP_HINT}") from error
    return h5py


@functools.cache
def import_distributed() -> Any:
    """Import Dask's scheduler client, which comes with the extra `[dask]`.

    Raises:
        ProviderUnavailable: distributed is not installed.
    """
    try:
        import distributed
    except ImportError as error:
        raise ProviderUnavailable(f"distributed is not installed; run: {DASK_HINT}") from error
    return distributed


@functools.cache
def import_obstore() -> Any:
    """Import obstore, which comes with the extra `[s3]`.

    Raises:
        ProviderUnavailable: obstore is not installed.
    """
    try:
        import obstore
        import obstore.store
    except ImportError as error:
        raise ProviderUnavailable(f"obstore is not installed; run: {S3_HINT}") from error
    return obstore


def gpu_count() -> int:
    """Return how many devices the installed FAISS can use: 0 for the CPU build."""
    faiss = import_faiss()
    return int(faiss.get_num_gpus()) if hasattr(faiss, "StandardGpuResources") else 0


class _MatchingDevice:
    """The device that matches large sets of descriptors: the first one, unless told otherwise."""

    number: int | None = 0


def use_matching_device(number: int | None) -> None:
    """Choose the device that matches large sets of descriptors; None for the CPU alone."""
    _MatchingDevice.number = number


def matching_device() -> int | None:
    """Return the device that matches large sets of descriptors, None if there is none."""
    number = _MatchingDevice.number
    return number if number is not None and number < gpu_count() else None


def use_one_opencv_thread() -> None:
    """Stop OpenCV from starting threads of its own for every request that runs."""
    import cv2

    cv2.setNumThreads(1)
