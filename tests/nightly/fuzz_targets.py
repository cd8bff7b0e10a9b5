"""What is fuzzed: parsers of untrusted bytes, with the only errors that may leave them."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from matchserve.api.jsonbody import decode_base64, parse_object
from matchserve.api.multipart import FormLimits, parse_form
from matchserve.encoding import features_from_npz
from matchserve.errors import ImageError, MatchServeError, ModelCorrupt, RequestError
from matchserve.limits import SERVICE_LIMITS, Limits
from matchserve.models.onnx_guard import check_model
from matchserve.vision.decode import decode
from tests.security import corpus
from tests.security import hostile_images as hostile

FORM = FormLimits(("image0", "image1"), 20_000)
# Small images only: a fuzzer shall find errors, not wait for pixels.
IMAGE_LIMITS = Limits(max_pixels=1_000_000, max_image_bytes=SERVICE_LIMITS.max_image_bytes)


@dataclass(frozen=True)
class Target:
    """A parser, its seeds, and the errors that it may raise."""

    run: Callable[[bytes], object]
    allowed: tuple[type[Exception], ...]
    seeds: Callable[[], list[bytes]]

    def __call__(self, data: bytes) -> None:
        """Parse bytes; any other error than an allowed one is a finding."""
        try:
            self.run(data)
        except self.allowed:
            return


def guard(data: bytes) -> None:
    """Check that a model which passes the guard has no external data for protobuf's own parser."""
    check_model(data)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception:  # noqa: BLE001  not a model: ONNX Runtime refuses it too
        return
    tensors = [*model.graph.initializer]
    tensors += [a.t for node in model.graph.node for a in node.attribute]
    for tensor in tensors:
        if tensor.external_data or tensor.data_location == TensorProto.EXTERNAL:
            raise AssertionError("the guard passed external data")
    if model.functions or any(a.g.node for n in model.graph.node for a in n.attribute):
        raise AssertionError("the guard passed functions or nested graphs")


def read_json(data: bytes) -> None:
    fields = parse_object(data)
    for value in fields.values():
        if isinstance(value, str):
            decode_base64(value, "image0", 1000)


def images() -> list[bytes]:
    picture = hostile.scene()
    seeds = [hostile.saved(picture, name) for name in ("JPEG", "PNG", "WEBP", "TIFF")]
    seeds += [hostile.saved(picture, "JPEG", progressive=True), *hostile.unusual_modes().values()]
    return [*seeds, corpus.chunks_png(2000), corpus.exif_jpeg(70_000), corpus.frames_webp(2000)]


def archives() -> list[bytes]:
    fields = {
        "model": np.array("rootsift"),
        "image_size": np.array([64, 64]),
        "keypoints": np.ones((2, 2), np.float32),
        "descriptors": np.eye(2, 128, dtype=np.float32),
    }
    seeds = []
    for save in (np.savez, np.savez_compressed):
        buffer = io.BytesIO()
        save(buffer, **fields)  # type: ignore[arg-type]
        seeds.append(buffer.getvalue())
    return seeds


def forms() -> list[bytes]:
    text = b'--x\r\nContent-Disposition: form-data; name="ratio"\r\n\r\n0.8\r\n'
    return [corpus.form("image0", b"pixels"), text + corpus.form("image1", b"\r\n--x\r\n")]


def json_bodies() -> list[bytes]:
    image = base64.b64encode(b"pixels" * 30).decode()
    return [
        json.dumps({"image0": image, "image1": f"data:image/png;base64,{image}"}).encode(),
        b'{"features0":{"model":"a","keypoints":[[1,2],[3.5e2,-4]],"x":null,"y":"\\u00e9\\"\\\\"}}',
    ]


def models() -> list[bytes]:
    weights = numpy_helper.from_array(np.ones((2, 1, 3, 3), np.float32), "w")
    node = helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[3, 3])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2, 6, 6])
    model = helper.make_model(helper.make_graph([node], "g", [x], [y], [weights]))
    external = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1])
    external.data_location = TensorProto.EXTERNAL
    external.external_data.add(key="location", value="secret")
    bad = helper.make_model(helper.make_graph([node], "g", [x], [y], [external]))
    return [model.SerializeToString(), bad.SerializeToString()]


def broken_parser(data: bytes) -> None:
    """A parser with an error that a fuzzer must find: the control of the whole set-up."""
    if len(data) > 8 and data[:4] == b"\x89PNG" and data[8] == 0xFF:
        raise IndexError("found")


TARGETS: dict[str, Target] = {
    "decode": Target(lambda d: decode(d, limits=IMAGE_LIMITS), (ImageError,), images),
    "npz": Target(features_from_npz, (MatchServeError,), archives),
    "multipart": Target(lambda d: parse_form(d, b"x", FORM), (RequestError,), forms),
    "json": Target(read_json, (RequestError,), json_bodies),
    "onnx": Target(guard, (ModelCorrupt,), models),
}
CONTROL = Target(broken_parser, (ImageError,), images)
