"""Rows of a Stack Exchange dump's XML (`Posts.xml`, `Users.xml`), streamed, of any size.

The standard library's expat, fed in pieces; nothing but the row at hand is in memory. What cannot be read is
told with line and reason, and reading goes on at the next `<row`: expat itself stops at the first mistake.
Entities that a file declares itself are never resolved, in it or outside: such a file is not read.

Not here: which rows make a thread (`thread_files.py`).
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any
from xml.parsers import expat

from xyreward.tables import packed

CHUNK = 1 << 16
"""Bytes per call of expat. After a mistake what is left of them is parsed again, so no more."""
LONGEST_ROW = 4 << 20
"""Bytes. A site allows some 30,000 characters; a row that is not closed would else take all memory."""

_OPEN: Mapping[str, Callable[..., Any]] = {"gzip": gzip.open, "bzip2": bz2.open, "xz": lzma.open}
_ROW = b"<row"
_WIDE = (b"\xff\xfe", b"\xfe\xff", b"<\0", b"\0<")
_PAGE = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype\s+)?html\b", re.IGNORECASE)


class _NotRead(Exception):  # noqa: N818
    """The file as a whole is not what it should be."""


def xml_rows(
    path: Path, tell: Callable[[str], None], *, root: str | None = None
) -> Iterator[tuple[int, dict[str, str]]]:
    """The attributes of each `<row>`, with its line.

    Args:
        path: the file; gzip, bzip2 and xz are unpacked on the way.
        tell: called with what is wrong, `FILE line N: found; expected`. It may raise, which ends reading.
        root: the name of the outermost element, such as `posts`; a file with another one is not read.

    Raises:
        OSError: the file cannot be opened.
    """
    rows = _Rows(path.name, tell, root)
    try:
        with _opened(path) as file:
            yield from rows.read(file)
    except _NotRead as found:
        tell(f"{path.name}: {found}; the file was not read")
    except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        # bz2 and gzip raise OSError without a number where their data is damaged.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        tell(
            f"{path.name} after line {rows.line}: its compressed data ends early or is damaged "
            f"({error}); get it again"
        )


def _opened(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        begins = file.read(8)
    if begins.startswith(b"7z\xbc\xaf\x27\x1c") or packed(begins) in ("zip", "zstd"):
        raise _NotRead(f"is an archive, expected XML; unpack it first (7z x {path.name})")
    opened: IO[bytes] = _OPEN.get(packed(begins) or "", open)(path, "rb")
    return opened


class _Rows:
    def __init__(self, name: str, tell: Callable[[str], None], root: str | None) -> None:
        self._name = name
        self._tell = tell
        self._root = root
        self._outermost = root or "posts"
        self._encoding: str | None = None
        self._lines = 0
        """Line ends of the file before what the parser at hand was given."""
        self._found: list[tuple[int, dict[str, str]]] = []
        self._now = self._parser()

    @property
    def line(self) -> int:
        """Where reading is."""
        return self._lines + int(self._now.CurrentLineNumber)

    def read(self, file: IO[bytes]) -> Iterator[tuple[int, dict[str, str]]]:
        parser = self._now
        fed = 0
        """Bytes that the parser was given before `piece`."""
        before = b""
        """The piece before: an error may lie in it."""
        since = lines = 0
        """Bytes since the last row ended; line ends that the parser was given."""
        piece = file.read(CHUNK)
        if not piece:
            raise _NotRead("is empty, expected XML")
        if _PAGE.match(piece):
            raise _NotRead("is a web page, expected a dump; look whether its download failed")
        wide = piece.startswith(_WIDE)
        while True:
            try:
                parser.Parse(piece, not piece)
            except LookupError as error:  # from the interpreter, not from expat, like the next
                raise _NotRead(f"declares an {error}") from None
            except ValueError as error:
                raise _NotRead(
                    f"declares encoding {self._encoding!r}: {error}; convert it to UTF-8"
                ) from None
            except expat.ExpatError as error:
                yield from self._take()
                since = 0
                line = self._lines + error.lineno
                if not piece:
                    self._cut_off(line, error)
                    return
                if error.code == _AFTER_THE_END:
                    self._tell(f"{self._name} line {line}: text after the end; it was left out")
                    return
                window = before + piece + file.read(4)  # a character may lie across two pieces
                index = parser.ErrorByteIndex - (fed - len(before))
                at = max(index, 0)  # a long row may begin still earlier
                there = window[at : at + 4] if index >= 0 else b""
                self._tell(self._message(error, line, there))
                if wide or error.code == _UNKNOWN_ENCODING:
                    self._tell(f"{self._name}: the rest of the file was not read")
                    return
                if error.code == _INCORRECT_ENCODING:
                    self._encoding = None  # it says UTF-16 and is not
                self._lines = line - 1
                if window.startswith(_ROW, at) and error.code != _INVALID_TOKEN:
                    at += len(_ROW)  # this row is the bad one, and not what another left open
                rest = self._next_row(window[at:], file)
                if rest is None:
                    return
                parser, fed = self._begin_again()
                before, piece, lines = b"", rest, 0
                continue
            found = self._take()
            yield from found
            if not piece:
                return
            since = 0 if found else since + len(piece)
            fed, before = fed + len(piece), piece
            lines += piece.count(b"\n")
            if since > LONGEST_ROW:
                self._tell(
                    f"{self._name} line {self.line}: no row ends within {LONGEST_ROW / 2**20:g} MiB; left "
                    "out up to the next one"
                )
                self._lines += lines
                rest = None if wide else self._next_row(b"", file)
                if rest is None:
                    return
                parser, fed = self._begin_again()
                before, piece, since, lines = b"", rest, 0, 0
                continue
            piece = file.read(CHUNK)

    def _begin_again(self) -> tuple[Any, int]:
        """A parser within the outermost element, and how many bytes it was given for that."""
        prelude = f"<{self._outermost}>".encode()
        self._now = self._parser()
        self._now.Parse(prelude, False)
        return self._now, len(prelude)

    def _next_row(self, text: bytes, file: IO[bytes]) -> bytes | None:
        """What is left of the file's pieces from the next row on; None where there is no more."""
        while True:
            match = _NEXT.search(text)
            if match:
                self._lines += text.count(b"\n", 0, match.start())
                return text[match.start() :]
            keep = text[-16:]  # a mark may lie across two pieces
            self._lines += text.count(b"\n") - keep.count(b"\n")
            more = file.read(CHUNK)
            if not more:
                if f"</{self._outermost}>".encode() not in keep:
                    self._tell(f"{self._name}: the file ends too early after that; get it again")
                return None
            text = keep + more

    def _parser(self) -> Any:
        parser = expat.ParserCreate(self._encoding)
        found, before = self._found, self._lines

        def outermost(name: str, _: dict[str, str]) -> None:
            if self._root is not None and name != self._root:
                raise _NotRead(f"its outermost element is <{name:.40}>, expected <{self._root}>")
            self._outermost = name
            parser.StartElementHandler = start

        def start(name: str, attributes: dict[str, str]) -> None:
            if name == "row":
                found.append((before + parser.CurrentLineNumber, attributes))

        def declared(_version: str, encoding: str | None, _standalone: int) -> None:
            self._encoding = encoding

        def doctype(*_: object) -> None:
            raise _NotRead("has a document type declaration, which no dump has")

        parser.StartElementHandler = outermost
        parser.XmlDeclHandler = declared
        parser.StartDoctypeDeclHandler = doctype
        return parser

    def _take(self) -> list[tuple[int, dict[str, str]]]:
        taken = self._found[:]
        self._found.clear()
        return taken

    def _cut_off(self, line: int, error: expat.ExpatError) -> None:
        what = expat.ErrorString(error.code)
        self._tell(f"{self._name} line {line}: the file ends too early ({what}); get it again")

    def _message(self, error: expat.ExpatError, line: int, there: bytes) -> str:
        what = expat.ErrorString(error.code)
        if there[:1] >= b"\x80" and (self._encoding or "utf-8").lower() in ("utf-8", "utf8"):
            try:
                there.decode("utf-8")
            except UnicodeDecodeError as wrong:
                if wrong.start == 0 and wrong.reason != "unexpected end of data":
                    what = f"byte 0x{there[0]:02x} is not UTF-8; convert the file"
        elif error.code == _INVALID_TOKEN and there[:1] < b" " and there[:1] not in b"\t\n\r":
            what = f"control character 0x{there[0]:02x}, which XML does not allow"
        elif there[:1] == b"<" and error.code == _INVALID_TOKEN:
            what = "a row begins within another one; there a quotation mark is missing"
        place = f"{self._name} line {line}, column {error.offset + 1}"
        return f"{place}: {what}; the row that holds it was left out"


_NEXT = re.compile(rb"<row(?=[\s/>])")
_INVALID_TOKEN = expat.errors.codes[expat.errors.XML_ERROR_INVALID_TOKEN]
_AFTER_THE_END = expat.errors.codes[expat.errors.XML_ERROR_JUNK_AFTER_DOC_ELEMENT]
_UNKNOWN_ENCODING = expat.errors.codes[expat.errors.XML_ERROR_UNKNOWN_ENCODING]
_INCORRECT_ENCODING = expat.errors.codes[expat.errors.XML_ERROR_INCORRECT_ENCODING]
