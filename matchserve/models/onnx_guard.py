"""Check an ONNX file before ONNX Runtime opens it: no external files, loops or custom operators.

External data lets a model file name any path on the machine, and a loop may never end. This walks
the protobuf wire format along the few fields that matter. It is stricter than protobuf where
parsers differ: ONNX Runtime truncates a tag to 32 bits, so a longer one is another field to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from matchserve.errors import ModelCorrupt

OPERATORS = frozenset(
    """Abs Add AveragePool BatchNormalization Cast Clip Concat Constant Conv DequantizeLinear Div
    Dropout Elu Equal Erf Exp Flatten Gather Gelu Gemm GlobalAveragePool GlobalMaxPool Greater
    GreaterOrEqual GroupNormalization HardSigmoid HardSwish Identity InstanceNormalization
    LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax LpNormalization MatMul Max MaxPool
    Mean Min Mul Neg Not Pow PRelu QuantizeLinear Reciprocal ReduceL1 ReduceL2 ReduceMax
    ReduceMean ReduceMin ReduceSum ReduceSumSquare Relu Reshape Round Shape Sigmoid Sign Slice
    Softmax Softplus Split Sqrt Squeeze Sub Sum Tanh Transpose Unsqueeze Where""".split()  # noqa: SIM905  a list of strings would fill the screen
)
"""Operators that a descriptor network may use: none that loops, branches or repeats its input."""

_STANDARD_DOMAINS = (b"", b"ai.onnx")

# Message -> {field number: message inside}, from onnx.proto: only the ways to nodes and tensors.
_FIELDS: dict[str, dict[int, str]] = {
    "model": {7: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 10: "tensor", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}
_REFUSED: dict[str, dict[int, str]] = {
    "model": {20: "training information", 25: "functions"},
    "attribute": {6: "graphs inside of nodes", 11: "graphs inside of nodes"},
    "tensor": {13: "tensors in external files"},
}
_DIMENSIONS, _DATA_LOCATION = 1, 14
_OPERATOR, _DOMAIN = 4, 7
_MAX_FIELD_NUMBER = (1 << 29) - 1
_UINT32 = (1 << 32) - 1


def check_model(model: bytes) -> None:
    """Refuse a serialised model that may read files, run for ever or allocate without bound.

    Raises:
        ModelCorrupt: the model is refused, or is not a valid protobuf message.
    """
    try:
        _walk(memoryview(model), "model", max_elements=8 * len(model))
    except (IndexError, RecursionError) as error:
        raise ModelCorrupt("the model file is not a valid ONNX message") from error


def _walk(message: memoryview, kind: str, max_elements: int) -> None:
    dimensions: list[int] = []
    for number, value in _fields(message):
        if number in _REFUSED.get(kind, {}):
            raise ModelCorrupt(f"the model has {_REFUSED[kind][number]}; that is refused")
        if kind == "node":
            _check_node_field(number, value)
        elif kind == "tensor":
            dimensions += _tensor_dimensions(number, value)
        inside = _FIELDS.get(kind, {}).get(number)
        if inside is not None and isinstance(value, memoryview):
            _walk(value, inside, max_elements)
    if kind == "tensor" and prod(dimensions) > max_elements:
        raise ModelCorrupt("a tensor of the model declares more values than the file can hold")


def _check_node_field(number: int, value: memoryview | int) -> None:
    text = value.tobytes() if isinstance(value, memoryview) else b""
    if number == _OPERATOR and text.decode("ascii", "replace") not in OPERATORS:
        name = text[:40].decode("ascii", "backslashreplace")
        raise ModelCorrupt(f"the model uses the operator {name!r}, which is not allowed")
    if number == _DOMAIN and text not in _STANDARD_DOMAINS:
        raise ModelCorrupt("the model uses operators outside of the ONNX standard")


def _tensor_dimensions(number: int, value: memoryview | int) -> list[int]:
    """Return the dimensions in one field of a tensor: one number, or several in a packed field."""
    if number == _DATA_LOCATION and (not isinstance(value, int) or value & _UINT32):
        raise ModelCorrupt("the model has tensors in external files; that is refused")
    if number != _DIMENSIONS:
        return []
    if isinstance(value, int):
        return [value]
    dimensions, position = [], 0
    while position < len(value):
        dimension, position = _varint(value, position)
        dimensions.append(dimension)
    return dimensions


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """Yield the (field number, value) pairs of one protobuf message."""
    position = 0
    while position < len(message):
        start = position
        key, position = _varint(message, position)
        number, wire = key >> 3, key & 7
        # A tag of more than 32 bits, or in more bytes than it needs, may be read in two ways.
        if not 1 <= number <= _MAX_FIELD_NUMBER or position - start != _varint_length(key):
            raise IndexError("a field number is out of range")
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


def _varint_length(value: int) -> int:
    return max(1, -(-value.bit_length() // 7))
