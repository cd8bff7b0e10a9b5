"""Refuses an ONNX file that keeps its weights elsewhere, before ONNX Runtime opens anything.

External data lets a model file name any path on the machine. This walks the protobuf wire format
along the few fields that can hold a tensor and looks for one that is stored outside.
"""

from __future__ import annotations

from collections.abc import Iterator

from matchserve.errors import ModelCorrupt

# Message -> {field number: message inside}, from onnx.proto: only the ways to a TensorProto.
_FIELDS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14
_MAX_DEPTH = 64


def refuse_external_data(model: bytes) -> None:
    """Raise if any tensor of the serialised model is stored outside it.

    Raises:
        ModelCorrupt: external data, or bytes that are not a protobuf message.
    """
    try:
        _walk(memoryview(model), "model", 0)
    except (IndexError, RecursionError) as error:
        raise ModelCorrupt("the model file is not a valid ONNX message") from error


def _walk(message: memoryview, kind: str, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise ModelCorrupt("the model's graphs are nested too deeply")
    inside = _FIELDS.get(kind, {})
    for number, value in _fields(message):
        if kind == "tensor":
            if number == _EXTERNAL_DATA or (number == _DATA_LOCATION and value == 1):
                raise ModelCorrupt("the model keeps tensors in external files; that is refused")
        elif number in inside and isinstance(value, memoryview):
            _walk(value, inside[number], depth + 1)


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """The (field number, value) pairs of one protobuf message."""
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, position = _varint(message, position)
            yield number, value
            continue
        if wire == 2:
            length, position = _varint(message, position)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise IndexError("unknown wire type")
        if position + length > len(message):
            raise IndexError("a field runs past the end")
        yield number, message[position : position + length]
        position += length


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = message[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
    raise IndexError("a number is too long")
