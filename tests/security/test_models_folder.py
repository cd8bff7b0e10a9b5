"""A folder of models from somebody else: refused with a typed error, and nothing read beyond it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from matchserve.errors import ModelCorrupt, ModelError
from matchserve.models.onnx_guard import OPERATORS, check_model
from matchserve.models.registry import load_descriptor, shipped_models_dir
from tests.tiny_models import write_tiny_model

VARINT_MORE = 0x80


def varint(value: int, length: int = 0) -> bytes:
    """A protobuf number, in more bytes than it needs if `length` says so."""
    out = bytearray()
    while value >= VARINT_MORE or len(out) + 1 < length:
        out.append(value & 0x7F | VARINT_MORE)
        value >>= 7
    return bytes(out) + bytes((value,))


def field(number: int, data: bytes, *, tag_bytes: int = 0, high_bits: int = 0) -> bytes:
    return varint(number << 3 | 2 | high_bits << 32, tag_bytes) + varint(len(data)) + data


def external_tensor(*, high_bits: int = 0, tag_bytes: int = 0) -> bytes:
    entry = field(1, b"location") + field(2, b"secret.bin")
    external = field(13, entry, high_bits=high_bits, tag_bytes=tag_bytes)
    location = varint(14 << 3 | high_bits << 32, tag_bytes) + b"\x01"
    return (
        varint(1 << 3) + b"\x08" + varint(2 << 3) + b"\x01" + field(8, b"w") + external + location
    )


def model_with(tensor: bytes) -> bytes:
    return varint(1 << 3) + b"\x0a" + field(7, field(5, tensor))


@pytest.mark.parametrize("high_bits", [0, 1, 2, 4])
@pytest.mark.parametrize("tag_bytes", [0, 3, 6, 9])
def test_external_data_is_refused_however_its_tags_are_written(
    high_bits: int, tag_bytes: int
) -> None:
    """ONNX Runtime drops the upper 32 bits of a tag: the guard must not read another field."""
    with pytest.raises(ModelCorrupt):
        check_model(model_with(external_tensor(high_bits=high_bits, tag_bytes=tag_bytes)))


def test_a_location_is_read_as_the_runtime_reads_it() -> None:
    tensor = varint(14 << 3) + varint((1 << 32) + 1)
    with pytest.raises(ModelCorrupt):
        check_model(model_with(tensor))


def test_groups_and_field_zero_are_refused() -> None:
    for data in (b"\x3b" + b"\x3c", b"\x02\x00", b"\x00\x00"):
        with pytest.raises(ModelCorrupt):
            check_model(data)


def test_a_declared_tensor_must_fit_into_the_file() -> None:
    """S-4: an initialiser of 2 GB without data."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[500, 1000, 1000])
    graph = helper.make_graph([], "g", [], [], [tensor])
    with pytest.raises(ModelCorrupt, match="declares"):
        check_model(helper.make_model(graph).SerializeToString())
    fits = numpy_helper.from_array(np.zeros((10, 10), np.float32), "w")
    check_model(helper.make_model(helper.make_graph([], "g", [], [], [fits])).SerializeToString())


@pytest.mark.parametrize(
    "operator", ["Loop", "If", "Scan", "SequenceMap", "ConstantOfShape", "Tile"]
)
def test_loops_and_branches_are_refused(operator: str) -> None:
    """S-5: a loop needs no time at all to be refused."""
    body = helper.make_graph([], "body", [], [])
    node = helper.make_node(operator, [], ["x"], body=body)
    model = helper.make_model(helper.make_graph([node], "g", [], []))
    with pytest.raises(ModelCorrupt, match=r"not allowed|inside of nodes"):
        check_model(model.SerializeToString())


@pytest.mark.parametrize("domain", ["com.microsoft", "ai.onnx.ml", "custom"])
def test_other_domains_are_refused(domain: str) -> None:
    """S-2."""
    node = helper.make_node("Relu", ["a"], ["b"], domain=domain)
    model = helper.make_model(helper.make_graph([node], "g", [], []))
    with pytest.raises(ModelCorrupt, match="standard"):
        check_model(model.SerializeToString())


def test_functions_are_refused() -> None:
    model = helper.make_model(helper.make_graph([], "g", [], []))
    model.functions.append(helper.make_function("custom", "f", [], [], [], []))
    with pytest.raises(ModelCorrupt, match="functions"):
        check_model(model.SerializeToString())


def test_shipped_models_pass() -> None:
    for path in shipped_models_dir().glob("*/model.onnx"):
        check_model(path.read_bytes())
        nodes = onnx.load(path).graph.node
        assert {node.op_type for node in nodes} <= OPERATORS


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("replace", [fifo, endless, folder])
@pytest.mark.parametrize("name", ["model.onnx", "golden.npz", "card.json"])
def test_only_regular_files_are_read(
    tmp_path: Path, name: str, replace: Callable[[Path], None]
) -> None:
    write_tiny_model(tmp_path / "tiny")
    replace(tmp_path / "tiny" / name)
    program = (
        "import sys\nfrom pathlib import Path\n"
        "from matchserve.errors import MatchServeError\n"
        "from matchserve.models.onnx_model import OnnxDescriptor\n"
        "try:\n    OnnxDescriptor(Path(sys.argv[1]))\n"
        "except MatchServeError as error:\n    print(error.code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "tiny")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() in ("model_missing", "model_corrupt"), done.stderr


def test_a_golden_archive_is_not_unpacked_without_bound(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "tiny")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header, {"descr": "|u1", "fortran_order": False, "shape": (300_000, 1, 32, 32)}
        )
        with archive.open("patches.npy", "w") as member:
            member.write(header.getvalue())
            for _ in range(300):
                member.write(bytes(1_024_000))
    (directory / "golden.npz").write_bytes(buffer.getvalue())
    set_golden_sum(directory)
    with pytest.raises(ModelError, match=r"golden\.npz"):
        load_descriptor("tiny", models_dir=tmp_path)


def set_golden_sum(directory: Path) -> None:
    import hashlib
    import json

    path = directory / "card.json"
    card = json.loads(path.read_text(encoding="utf-8"))
    data = (directory / "golden.npz").read_bytes()
    card["golden_sha256"] = hashlib.sha256(data).hexdigest()
    path.write_text(json.dumps(card), encoding="utf-8")


def test_a_card_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "tiny")
    path = directory / "card.json"
    text = path.read_text(encoding="utf-8")
    import json

    card = json.loads(text)
    card["method"] = "\x1b]0;owned\x07\x1b[2J[red]x[/]"
    path.write_text(json.dumps(card), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "matchserve", "models", "--models-dir", str(tmp_path)],
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert b"\x1b" not in done.stdout
    assert b"\x07" not in done.stdout
