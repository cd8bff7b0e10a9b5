"""Parse multipart/form-data in memory, with a limited number of parts.

Starlette's parser writes large files to disk and does not limit their size.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from matchserve.api.body import too_large
from matchserve.api.errors import InvalidMultipart
from matchserve.errors import InvalidParameter

MAX_FIELDS = 64
MAX_FIELD_BYTES = 16_384
MAX_HEADERS, MAX_HEADER_BYTES = 8, 16_384
_PART_BYTES = 1 << 20


@dataclass(slots=True)
class Form:
    """Text fields and files of a form, by field name; file names are ignored."""

    fields: dict[str, str] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FormLimits:
    """Names of the files that a form may contain, and the maximum size of each."""

    files: tuple[str, ...]
    max_file_bytes: int


def parse_form(body: bytes | bytearray, boundary: bytes, limits: FormLimits) -> Form:
    """Parse a whole multipart body.

    Raises:
        InvalidMultipart: the body is not a multipart form, is truncated, or has too many parts.
        InvalidParameter: a part is unknown, repeated, or not UTF-8.
        PayloadTooLarge: a file is too large.
    """
    reader = _Reader(limits)
    try:
        parser = MultipartParser(
            boundary,
            {
                "on_part_begin": reader.begin,
                "on_part_data": reader.data,
                "on_part_end": reader.end,
                "on_header_field": reader.header_name,
                "on_header_value": reader.header_value,
                "on_header_end": reader.header_end,
                "on_end": reader.finish,
            },
            max_header_count=MAX_HEADERS,
            max_header_size=MAX_HEADER_BYTES,
        )
        # In blocks: the search for the boundary holds the interpreter's lock.
        for start in range(0, len(body), _PART_BYTES):
            parser.write(bytes(body[start : start + _PART_BYTES]))
        parser.finalize()
    except FormParserError as error:
        raise InvalidMultipart("the body is not a valid multipart form") from error
    if not reader.is_complete:
        raise InvalidMultipart("the multipart body ends before its last boundary")
    return reader.form


class _Reader:
    """Callbacks of the parser: collect the parts of a form."""

    def __init__(self, limits: FormLimits) -> None:
        self.form = Form()
        self.is_complete = False
        self._limits = limits
        self._parts = 0

    def begin(self) -> None:
        self._parts += 1
        if self._parts > MAX_FIELDS:
            raise InvalidMultipart(f"a form has at most {MAX_FIELDS} parts")
        self._headers: dict[str, bytes] = {}
        self._name, self._value = bytearray(), bytearray()
        self._content = bytearray()

    def header_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def header_end(self) -> None:
        self._headers[self._name.decode("latin-1").lower()] = bytes(self._value)
        self._name, self._value = bytearray(), bytearray()

    def data(self, data: bytes, start: int, end: int) -> None:
        size = len(self._content) + end - start
        if size > self._limits.max_file_bytes:
            raise too_large(size, self._limits.max_file_bytes)
        self._content += memoryview(data)[start:end]

    def end(self) -> None:
        _, options = parse_options_header(self._headers.get("content-disposition"))
        name = _text(options.get(b"name", b""), "a part's name")
        if name in self.form.files or name in self.form.fields:
            raise InvalidParameter(f"{name[:64]} was sent twice")
        if name in self._limits.files:
            self.form.files[name] = bytes(self._content)
        elif b"filename" in options:
            raise InvalidParameter(f"{name[:64]!r} is not a file of this form")
        elif len(self._content) > MAX_FIELD_BYTES:
            raise InvalidParameter(f"{name[:64]} is longer than {MAX_FIELD_BYTES} bytes",
                                   limit=MAX_FIELD_BYTES, value=len(self._content))  # fmt: skip
        else:
            self.form.fields[name] = _text(bytes(self._content), name[:64])

    def finish(self) -> None:
        self.is_complete = True


def _text(data: bytes, what: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidParameter(f"{what} is not UTF-8") from error
