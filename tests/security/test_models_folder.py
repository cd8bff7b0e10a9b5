"""A folder of models from somebody else: refused with a typed error, and nothing read beyond it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from matchserve.cli import app, main
from matchserve.errors import ModelCorrupt, ModelError, PayloadTooLarge
from matchserve.models.onnx_guard import OPERATORS, check_model
from matchserve.models.registry import load_descriptor, shipped_models_dir
from tests.tiny_models import tiny_graph, write_tiny_model

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


def test_external_data_is_refused_by_either_of_its_fields() -> None:
    """A parser may look at the location alone, or at the entries alone."""
    entry = field(1, b"location") + field(2, b"secret.bin")
    for tensor in (field(13, entry), varint(14 << 3) + b"\x01"):
        with pytest.raises(ModelCorrupt, match="external files"):
            check_model(model_with(tensor))
    check_model(model_with(varint(14 << 3) + b"\x00"))


def test_a_tag_in_more_bytes_than_it_needs_is_refused() -> None:
    check_model(varint(1 << 3) + b"\x0a")
    with pytest.raises(ModelCorrupt, match="not a valid"):
        check_model(varint(1 << 3, 3) + b"\x0a")


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
    node = helper.make_node(operator, [], ["x"])
    model = helper.make_model(helper.make_graph([node], "g", [], []))
    with pytest.raises(ModelCorrupt, match="not allowed"):
        check_model(model.SerializeToString())


@pytest.mark.parametrize("is_list", [False, True])
def test_a_graph_inside_of_an_allowed_operator_is_refused(is_list: bool) -> None:
    body = helper.make_graph([], "body", [], [])
    node = helper.make_node("Relu", ["a"], ["b"], body=[body] if is_list else body)
    model = helper.make_model(helper.make_graph([node], "g", [], []))
    with pytest.raises(ModelCorrupt, match="inside of nodes"):
        check_model(model.SerializeToString())


def test_a_model_with_a_loop_is_refused_before_it_is_opened(tmp_path: Path) -> None:
    graph = tiny_graph()
    graph.graph.node.append(
        helper.make_node("Loop", [], ["x"], body=helper.make_graph([], "body", [], []))
    )
    write_tiny_model(tmp_path / "tiny", graph=graph)
    with pytest.raises(ModelCorrupt, match="'Loop', which is not allowed"):
        load_descriptor("tiny", models_dir=tmp_path)


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


def empty_device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/null")


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("model.onnx", "model_missing"),
        ("golden.npz", "model_missing"),
        ("card.json", "model_missing"),
        ("confidence.json", "model_corrupt"),
    ],
)
def test_only_regular_files_are_read(tmp_path: Path, name: str, code: str) -> None:
    """A process of its own, because a pipe that is opened without care is waited for for ever."""
    program = (
        "import sys\nfrom pathlib import Path\n"
        "from matchserve.errors import MatchServeError\n"
        "from matchserve.models.onnx_model import OnnxDescriptor\n"
        "for directory in sys.argv[1:]:\n"
        "    try:\n        OnnxDescriptor(Path(directory))\n"
        "    except MatchServeError as error:\n        print(error.code)\n"
    )
    directories = []
    for replace in (fifo, endless, empty_device, folder):
        directory = write_tiny_model(tmp_path / replace.__name__)
        (directory / name).touch()
        replace(directory / name)
        directories.append(str(directory))
    done = subprocess.run(
        [sys.executable, "-c", program, *directories], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == 4 * [code], done.stderr


def test_a_golden_archive_is_not_unpacked_without_bound(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "tiny")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header, {"descr": "|u1", "fortran_order": False, "shape": (110_000, 1, 32, 32)}
        )
        with archive.open("patches.npy", "w") as member:
            member.write(header.getvalue())
            for _ in range(110):
                member.write(bytes(1_024_000))
    (directory / "golden.npz").write_bytes(buffer.getvalue())
    set_golden_sum(directory)
    with pytest.raises(ModelError, match=r"golden\.npz") as refusal:
        load_descriptor("tiny", models_dir=tmp_path)
    assert isinstance(refusal.value.__cause__, PayloadTooLarge)


def set_golden_sum(directory: Path) -> None:
    path = directory / "card.json"
    card = json.loads(path.read_text(encoding="utf-8"))
    data = (directory / "golden.npz").read_bytes()
    card["golden_sha256"] = hashlib.sha256(data).hexdigest()
    path.write_text(json.dumps(card), encoding="utf-8")


HOSTILE = "\x1b]0;owned\x07\x1b[2J[red]x[/]"


@pytest.mark.parametrize("command", [["models"], ["models", "tiny"], ["doctor"]])
def test_a_card_cannot_write_to_the_terminal(tmp_path: Path, command: list[str]) -> None:
    figures = {"figures": {"tiny": {"mma@3px": 0.5}}}
    write_tiny_model(tmp_path / "tiny", method=HOSTILE, metrics={HOSTILE: figures})
    path = write_tiny_model(tmp_path / "broken") / "card.json"
    card = json.loads(path.read_text(encoding="utf-8"))
    card[HOSTILE] = "an unknown field, which the message names"
    path.write_text(json.dumps(card), encoding="utf-8")
    done = CliRunner().invoke(app, [*command, "--models-dir", str(tmp_path)])
    # One of the models is broken, which only `doctor` calls a failure.
    assert done.exit_code == (1 if command == ["doctor"] else 0), done.output
    assert "]0;owned" in done.output
    assert "\x1b" not in done.output
    assert "\x07" not in done.output


def test_an_error_cannot_write_to_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise ModelCorrupt(HOSTILE)

    monkeypatch.setattr("matchserve.cli.app", fail)
    handler = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit):
            main()
    finally:
        signal.signal(signal.SIGINT, handler)
    printed = capsys.readouterr().err
    assert "]0;owned" in printed
    assert "\x1b" not in printed
    assert "\x07" not in printed
