"""A wrong method is refused with all methods that the path has."""

from __future__ import annotations

import httpx
import pytest


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/v1/match", {"POST"}),
        ("/v1/features/stored/x", {"DELETE", "GET"}),
        ("/openapi.json", {"GET", "HEAD"}),
    ],
)
def test_allow_lists_every_method_of_the_path(
    http: httpx.Client, path: str, methods: set[str]
) -> None:
    refused = http.patch(path)
    assert refused.status_code == 405
    assert set(refused.headers["Allow"].split(", ")) == methods
