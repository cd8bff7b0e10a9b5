"""F-4: mutated HTTP requests, written to a socket as they are."""

from __future__ import annotations

import contextlib
import random
import socket

from tests.nightly.fuzz import mutated

BODY = b'{"image0": "QUJD", "image1": "QUJD"}'
FORM = b'--x\r\nContent-Disposition: form-data; name="image0"\r\n\r\npixels\r\n--x--\r\n'

SEEDS = [
    b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    b"HEAD /v1/models HTTP/1.0\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"POST /v1/match HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(BODY), BODY),
    b"POST /v1/match HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=x\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(FORM), FORM),
    b"POST /v1/features HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n5\r\n{\"a\":\r\n3;x=y\r\n 1}\r\n0\r\nTrailer: a\r\n\r\n",
    b"POST /v2/models/rootsift/infer HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
    b"Inference-Header-Content-Length: 2\r\nContent-Length: 4\r\n\r\n{}ab",
    b"GET /v1/models/%2e%2e%2f HTTP/1.1\r\nHost: x\r\nX-API-Key: abc\r\nAccept: image/png\r\n\r\n",
]  # fmt: skip
WORDS = (b"\r\n", b"\0", b": ", b"HTTP/9.9", b"Content-Length: -1\r\n", b"chunked", b"\xff\xfe",
         b"Transfer-Encoding: gzip, chunked\r\n", b"%00", b"\t", b"A" * 5000)  # fmt: skip


def requests(count: int, seed: int = 0) -> list[bytes]:
    """Return mutated requests: changed bytes, inserted words, and several in a row."""
    rng = random.Random(seed)
    cases = []
    for _ in range(count):
        data = mutated(rng, rng.choice(SEEDS), rng.choice(SEEDS))
        for _ in range(rng.randrange(3)):
            at = rng.randrange(len(data) + 1)
            data = data[:at] + rng.choice(WORDS) + data[at:]
        if rng.random() < 0.2:
            data += rng.choice(SEEDS)
        cases.append(data)
    return cases


def exchange(port: int, data: bytes, timeout_s: float = 60.0) -> bytes:
    """Send bytes, say that no more will come, and return the whole answer."""
    answer = b""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection,
        contextlib.suppress(ConnectionError),
    ):
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        while part := connection.recv(65536):
            answer += part
    return answer
