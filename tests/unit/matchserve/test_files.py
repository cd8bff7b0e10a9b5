import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from matchserve.files import (
    WholeDirectory,
    open_whole,
    remove_leftovers,
    write_text_whole,
    write_whole,
)

KILLED_WRITER = """
import os, signal, sys
from pathlib import Path
from matchserve.files import WholeDirectory, open_whole

target = Path(sys.argv[2])
if sys.argv[1] == "file":
    with open_whole(target) as file:
        file.write(b"new, but only the first ha")
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
with WholeDirectory(target) as temporary:
    (temporary / "first.bin").write_bytes(b"first of two")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def kill_a_writer(kind: str, target: Path) -> None:
    command = [sys.executable, "-c", KILLED_WRITER, kind, str(target)]
    assert subprocess.run(command, check=False, timeout=60).returncode == -signal.SIGKILL


def full_disk(_descriptor: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_bytes_and_text_are_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_whole(path, b"\x00one")
    assert path.read_bytes() == b"\x00one"
    write_text_whole(path, "zwölf")
    assert path.read_bytes() == "zwölf".encode()
    assert names(tmp_path) == ["a.bin"]


def test_a_writer_killed_half_way_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    kill_a_writer("file", path)
    assert path.read_text() == "old"
    assert len(names(tmp_path)) == 2, "the leftover shows that the writer had started"
    remove_leftovers(tmp_path)
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("existing", [True, False])
def test_a_full_disk_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existing: bool
) -> None:
    path = tmp_path / "a.txt"
    if existing:
        path.write_text("old")
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        write_text_whole(path, "new")
    assert names(tmp_path) == (["a.txt"] if existing else [])
    assert not existing or path.read_text() == "old"


def test_an_error_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), open_whole(path) as file:
        file.write(b"new" * (1 // 0))
    assert names(tmp_path) == ["a.txt"]
    assert path.read_text() == "old"


def test_a_directory_appears_when_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "store"
    with WholeDirectory(target) as temporary:
        (temporary / "sub").mkdir()
        (temporary / "sub" / "a.txt").write_text("a")
        assert not target.exists()
    assert (target / "sub" / "a.txt").read_text() == "a"
    assert names(target.parent) == ["store"]


def test_an_error_leaves_no_directory(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), WholeDirectory(tmp_path / "s") as temporary:
        (temporary / "missing" / "a.txt").write_text("a")
    assert names(tmp_path) == []


def test_a_full_disk_leaves_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = WholeDirectory(tmp_path / "s")
    (directory.temporary / "a.txt").write_text("a")
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        directory.publish()
    assert names(tmp_path) == []


def test_a_writer_killed_half_way_leaves_no_directory_of_the_final_name(tmp_path: Path) -> None:
    kill_a_writer("directory", tmp_path / "store")
    assert not (tmp_path / "store").exists()
    assert len(names(tmp_path)) == 1
    remove_leftovers(tmp_path)
    assert names(tmp_path) == []


def test_an_existing_directory_is_never_replaced(tmp_path: Path) -> None:
    target = tmp_path / "store"
    with pytest.raises(FileExistsError, match="store"), WholeDirectory(target):
        target.mkdir()
    assert names(tmp_path) == ["store"]


def test_other_hidden_files_are_no_leftovers(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*")
    (tmp_path / "results.partial").write_text("visible")
    remove_leftovers(tmp_path)
    assert names(tmp_path) == [".gitignore", "results.partial"]
