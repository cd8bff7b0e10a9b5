"""A pool of warm decoder processes; one that does not answer in time is killed and replaced."""

from __future__ import annotations

import os
import queue
import select
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np

from matchserve.clock import Deadline
from matchserve.decoding.messages import MAX_MESSAGE_BYTES, READY, DecodeRequest, parse_reply
from matchserve.errors import CorruptImage, ImageTooLarge, ShuttingDown
from matchserve.limits import Limits
from matchserve.types import Image, UInt8
from matchserve.vision.decode import from_array, reduced
from matchserve.vision.headers import Encoded
from matchserve.vision.pixels import DecodeOptions, ExifPolicy

MEMORY_BYTES_PER_PIXEL = 32
"""Memory that a decoder may take for each pixel; measured maximum: 28, for WebP."""

_POLL_S = 0.1
_KEPT_BYTES = 1 << 22
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]


class DecoderPool:
    """Decodes images in a fixed number of processes; safe to call from many threads."""

    def __init__(self, count: int, limits: Limits, formats: tuple[str, ...]) -> None:
        """Prepare a pool of `count` processes, which `start` or the first image starts."""
        self._missing = count
        self._options = DecodeOptions(limits=limits, formats=formats)
        memory = MEMORY_BYTES_PER_PIXEL * limits.max_pixels + 4 * limits.max_image_bytes
        self._memory_bytes = memory
        self._idle: queue.LifoQueue[_Decoder] = queue.LifoQueue()
        self._lock = threading.Lock()
        self._all: set[_Decoder] = set()
        self._is_closed = False
        self.kills = 0
        """Number of processes killed so far because an image took too long."""

    def start(self) -> None:
        """Start the processes, so that the first image does not wait for their imports."""
        with self._lock:
            missing, self._missing = self._missing, 0
        for _ in range(missing):
            self._start()

    def decode(
        self, data: Encoded, *, exif: ExifPolicy, max_side: int | None, deadline: Deadline
    ) -> Image:
        """Decode to grey like `matchserve.vision.decode.decode`.

        Raises:
            ImageError: the bytes cannot be used; the subclass says why.
            DeadlineExceeded: the image was not decoded in time.
            ClientDeparted: the client closed the connection.
        """
        grey = self._run(data, replace(self._options, exif=exif), deadline)
        return from_array(grey, max_side=max_side, limits=self._options.limits)

    def decode_colour(
        self, data: Encoded, *, exif: ExifPolicy, max_side: int, deadline: Deadline
    ) -> UInt8:
        """Decode to RGB like `matchserve.vision.decode.decode_colour`, with errors of `decode`."""
        options = replace(self._options, exif=exif, colour_side=max_side)
        return np.ascontiguousarray(reduced(self._run(data, options, deadline), max_side))

    def close(self) -> None:
        """Kill all processes."""
        with self._lock:
            self._is_closed = True
            for decoder in self._all:
                decoder.kill()
            self._all.clear()
            self._missing = 0

    def _run(self, data: Encoded, options: DecodeOptions, deadline: Deadline) -> UInt8:
        decoder = self._take(deadline)
        is_usable = False
        try:
            pixels = decoder.decode(data, options, deadline)
            is_usable = True
            return pixels
        except _DecoderFailed:
            deadline.check()
            raise ImageTooLarge("the image needs too much time or memory to decode") from None
        finally:
            if is_usable or decoder.is_idle:
                self._idle.put(decoder)
            else:
                self._replace(decoder)

    def _take(self, deadline: Deadline) -> _Decoder:
        self.start()
        while True:
            deadline.check()
            if self._is_closed:
                raise ShuttingDown("the service is shutting down")
            try:
                return self._idle.get(timeout=min(_POLL_S, deadline.remaining_s()))
            except queue.Empty:
                continue

    def _start(self) -> None:
        with self._lock:
            if not self._is_closed:
                decoder = _Decoder(self._memory_bytes)
                self._all.add(decoder)
                self._idle.put(decoder)

    def _replace(self, decoder: _Decoder) -> None:
        self.kills += 1
        decoder.kill()
        with self._lock:
            self._all.discard(decoder)
        self._start()


class _DecoderFailed(Exception):
    """The process ended, or its time was over."""


class _Decoder:
    """One decoder process; used by one thread at a time."""

    def __init__(self, memory_bytes: int) -> None:
        self._shared = os.memfd_create("matchserve-image", os.MFD_CLOEXEC)
        self._connection, theirs = socket.socketpair()
        self.is_idle = True
        self._is_ready = False
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603  our own program
                [
                    *(sys.executable, "-P", "-m", "matchserve.decoding.child"),
                    *(str(theirs.fileno()), str(self._shared), str(memory_bytes)),
                ],
                pass_fds=(theirs.fileno(), self._shared),
                env=child_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the service, which finishes its requests
            )

    def decode(self, data: Encoded, options: DecodeOptions, deadline: Deadline) -> UInt8:
        """Decode one image.

        Raises:
            ImageError: the decoder refused the image.
            _DecoderFailed: the process ended or the deadline passed; kill it.
        """
        if not self._is_ready:
            if self._reply(deadline) != READY:
                raise _DecoderFailed
            self._is_ready = True
        self.is_idle = False
        write_all(self._shared, memoryview(data).cast("B"))
        self._connection.sendall(DecodeRequest(len(data), options).to_line())
        reply = self._reply(deadline)
        self.is_idle = True
        shape = parse_reply(reply)
        return self._pixels(shape, options)

    def kill(self) -> None:
        """End the process and free what belongs to it."""
        self._process.kill()
        self._process.wait()
        self._connection.close()
        os.close(self._shared)

    def _reply(self, deadline: Deadline) -> bytes:
        """Wait for a whole line."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        line = b""
        while not line.endswith(b"\n"):
            if not poll.poll(1e3 * min(_POLL_S, deadline.remaining_s())):
                if deadline.is_over:
                    raise _DecoderFailed
                continue
            part = self._connection.recv(MAX_MESSAGE_BYTES)
            if not part or len(line) + len(part) > MAX_MESSAGE_BYTES:
                raise _DecoderFailed
            line += part
        return line

    def _pixels(self, shape: tuple[int, ...], options: DecodeOptions) -> UInt8:
        """Read the pixels that the process has written; it is not trusted."""
        channels = () if options.colour_side is None else (3,)
        if len(shape) < 2 or shape[2:] != channels or min(shape) < 1:
            raise CorruptImage("the image broke its decoder")
        if shape[0] * shape[1] > options.limits.max_pixels:
            raise CorruptImage("the image broke its decoder")
        pixels = np.empty(shape, np.uint8)
        if os.fstat(self._shared).st_size != pixels.nbytes:
            raise CorruptImage("the image broke its decoder")
        read_into(self._shared, pixels.data.cast("B"))
        if pixels.nbytes > _KEPT_BYTES:
            os.ftruncate(self._shared, 0)
        return pixels


def child_environment() -> dict[str, str]:
    """Return the environment of a child process: no settings, no secrets, one thread."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("MATCHSERVE_")}
    paths = [str(_PACKAGE_ROOT), *filter(None, [kept.get("PYTHONPATH")])]
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), "OPENBLAS_NUM_THREADS": "1"}


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write data at the beginning of a file."""
    written = 0
    while written < len(data):
        written += os.pwrite(descriptor, data[written:], written)


def read_into(descriptor: int, buffer: memoryview) -> None:
    """Fill a buffer from the beginning of a file.

    Raises:
        CorruptImage: the file is shorter.
    """
    position = 0
    while position < len(buffer):
        count = os.preadv(descriptor, [buffer[position:]], position)
        if count == 0:
            raise CorruptImage("the image broke its decoder")
        position += count
