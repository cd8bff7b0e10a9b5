"""A small S3: PUT, GET, HEAD and removal of objects in memory, with faults on demand."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SLOW_S = 1.0


class Bucket:
    """The objects, and what is wrong with the next requests.

    A fault is a status, "cut" for no response at all, "half" for a response that ends in the
    middle, or "slow" for one that comes late.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.faults: list[int | str] = []
        self.always: int | str | None = None
        self.lock = threading.Lock()

    def fault(self) -> int | str | None:
        with self.lock:
            return self.faults.pop(0) if self.faults else self.always


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    _bucket: Bucket

    def _answer(
        self, status: int, body: bytes = b"", *, is_head: bool = False, is_half: bool = False
    ) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        tag = hashlib.sha256(body).hexdigest()[:16]
        if asked and status == 200:
            first, last = int(asked[1]), min(int(asked[2] or len(body)), len(body) - 1)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(body)}")
            body = body[first : last + 1]
        else:
            self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{tag}"')
        self.send_header("Last-Modified", "Wed, 18 Nov 2026 00:00:00 GMT")
        self.end_headers()
        if not is_head:
            self.wfile.write(body[: len(body) // 2] if is_half else body)
        self.close_connection = self.close_connection or is_half

    def _serve(self, method: str) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self._bucket.fault()
        if fault == "slow":
            time.sleep(SLOW_S)
        if isinstance(fault, int):
            self._answer(fault)
        elif fault == "cut":
            self.close_connection = True  # no response at all
        elif method == "PUT":
            self._bucket.objects[self.path] = body
            self._answer(200)
        elif self.path not in self._bucket.objects:
            self._answer(404)
        else:
            data, is_half = self._bucket.objects[self.path], fault == "half"
            self._answer(200, data, is_head=method == "HEAD", is_half=is_half)

    def do_PUT(self) -> None:
        self._serve("PUT")

    def do_GET(self) -> None:
        self._serve("GET")

    def do_HEAD(self) -> None:
        self._serve("HEAD")

    def do_POST(self) -> None:
        """Remove the objects that the body lists."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        removed = ""
        for key in re.findall(r"<Key>(.*?)</Key>", body):
            self._bucket.objects.pop(f"{self.path.partition('?')[0]}/{key}", None)
            removed += f"<Deleted><Key>{key}</Key></Deleted>"
        self._answer(200, f"<DeleteResult>{removed}</DeleteResult>".encode())

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def s3_server() -> Iterator[tuple[str, Bucket]]:
    """Serve a bucket on a free port; yield the endpoint and the bucket."""
    bucket = Bucket()
    handler = type("Handler", (_Handler,), {"_bucket": bucket})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", bucket
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
