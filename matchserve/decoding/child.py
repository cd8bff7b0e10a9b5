"""The program of a decoder process: decode one image after another until the service is gone.

A decoder has a limit of memory and of processor time, no secrets in its environment, and is killed
when an image takes too long. It imports neither OpenCV nor a model, so it starts fast.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import sys
from pathlib import Path

import numpy as np
from PIL import Image as Pillow

from matchserve.decoding.messages import (
    MAX_MESSAGE_BYTES,
    READY,
    DecodeRequest,
    error_line,
    shape_line,
)
from matchserve.errors import ImageError
from matchserve.vision.pixels import decode_pixels

CPU_S = 20
"""Maximum processor time for one image, in seconds."""

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38


def main() -> None:
    """Serve the socket and the shared file whose descriptors are the first two arguments.

    The third argument is the number of bytes of memory that decoding may take.
    """
    connection = socket.socket(fileno=int(sys.argv[1]))
    shared = int(sys.argv[2])
    _confine(int(sys.argv[3]))
    connection.sendall(READY)
    while line := connection.recv(MAX_MESSAGE_BYTES):
        _limit_cpu(CPU_S)
        connection.sendall(_decode(DecodeRequest.from_line(line), shared))


def _decode(request: DecodeRequest, shared: int) -> bytes:
    """Replace the encoded image in the shared file by its pixels, and return the reply."""
    try:
        pixels = np.ascontiguousarray(decode_pixels(_read(shared, request.size), request.options))
    except ImageError as error:
        return error_line(error)
    view = pixels.data.cast("B")
    written = 0
    while written < len(view):
        written += os.pwrite(shared, view[written:], written)
    os.ftruncate(shared, written)
    return shape_line(pixels.shape)


def _read(shared: int, size: int) -> bytes:
    data = os.pread(shared, size, 0)
    while len(data) < size:  # Linux reads at most 2 GB at once
        data += os.pread(shared, size - len(data), len(data))
    return data


def end_with_parent() -> None:
    """End when the parent ends, write no core file, and gain no rights."""
    control = getattr(ctypes.CDLL(None), "prctl", None)
    if control is not None:
        control(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        control(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _confine(memory_bytes: int) -> None:
    """Confine this process to its parent's life and to a limit of memory."""
    Pillow.init()  # all plugins now: later there may be no memory for them
    end_with_parent()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    allowed = pages * resource.getpagesize() + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))


def _limit_cpu(seconds: int) -> None:
    """Let the kernel end this process when one image takes more processor time than this."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    limit = int(used.ru_utime + used.ru_stime) + 1 + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (limit, hard))


if __name__ == "__main__":
    main()
