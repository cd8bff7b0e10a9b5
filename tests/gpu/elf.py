"""What a shared library needs, read from its ELF header."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

# Libraries of every Debian image: libc6, libstdc++6, libgcc-s1 and zlib1g are essential there.
OF_THE_BASE_IMAGE = {
    "ld-linux-x86-64.so.2",
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
    "libstdc++.so.6",
    "libz.so.1",
}
DRIVER = "libcuda.so.1"


def shared_libraries(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*.so*") if p.is_file() and _is_elf(p))


def needed(path: Path) -> list[str]:
    """Names of the libraries that the dynamic linker must find for this one."""
    with path.open("rb") as file:
        section = ELFFile(file).get_section_by_name(".dynamic")
        assert isinstance(section, DynamicSection)
        tags: Iterable[Any] = section.iter_tags()
        return [tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"]


def undefined_symbols(path: Path) -> set[str]:
    with path.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".dynsym")
        assert isinstance(table, SymbolTableSection)
        return {s.name for s in table.iter_symbols() if s["st_shndx"] == "SHN_UNDEF" and s.name}


def _is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"
