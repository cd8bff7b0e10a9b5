"""A stock Triton client gets the same descriptors as our own route gives."""

from __future__ import annotations

import httpx
import numpy as np
import pytest
import tritonclient.http as triton

from tests.server_process import ServerProcess


@pytest.fixture(scope="module")
def patches() -> np.ndarray:
    return np.random.default_rng(8).integers(0, 256, (70, 1, 32, 32), np.uint8)


def ours(http: httpx.Client, model: str, patches: np.ndarray) -> np.ndarray:
    answer = http.post(
        f"/v1/patches?model={model}",
        content=patches.tobytes(),
        headers={"Content-Type": "application/octet-stream"},
    )
    return np.array(answer.json()["descriptors"], np.float32)


@pytest.mark.parametrize("model", ["tiny", "tiny-bits", "rootsift"])
@pytest.mark.parametrize("is_binary", [True, False])
def test_tritonclient(
    server: ServerProcess, http: httpx.Client, patches: np.ndarray, model: str, is_binary: bool
) -> None:
    client = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    try:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready(model)
        description = client.get_model_metadata(model)
        assert description["inputs"][0]["shape"] == [-1, 1, 32, 32]
        source = triton.InferInput("patches", list(patches.shape), "UINT8")
        source.set_data_from_numpy(patches, binary_data=is_binary)
        wanted = triton.InferRequestedOutput("descriptors", binary_data=is_binary)
        rows = client.infer(model, [source], outputs=[wanted]).as_numpy("descriptors")
    finally:
        client.close()
    assert rows.dtype == (np.uint8 if model == "tiny-bits" else np.float32)
    np.testing.assert_allclose(rows, ours(http, model, patches), atol=1e-6)


def test_errors_have_tritons_shape(http: httpx.Client) -> None:
    answer = http.post("/v2/models/none/infer", json={"inputs": []})
    assert (answer.status_code, list(answer.json())) == (404, ["error"])
    bad = {"inputs": [{"name": "patches", "shape": [1, 2], "datatype": "UINT8", "data": [1, 2]}]}
    assert http.post("/v2/models/tiny/infer", json=bad).status_code == 422
