"""Bytes to characters: what kind of thing was sent, and in which charset.

Servers are often wrong about both, so the bytes are looked at before their label is believed.
"""

import codecs
import re
from enum import StrEnum

from charset_normalizer import from_bytes

from gligabao.reader.faults import Unreadable

SNIFFED_BYTES = 1024
DECLARED_BYTES = 2048
"""How far into a page a charset may be declared."""
GUESSED_BYTES = 32 * 1024
"""How much of a page is looked at when its charset has to be guessed."""
LEAST_GUESSED_BYTES = 8
"""With fewer bytes outside ASCII than this nothing can be guessed."""


class Kind(StrEnum):
    """The kinds of thing that are read."""

    HTML = "text/html"
    XML = "application/xml"
    TEXT = "text/plain"


_MAGIC = [
    (0, b"\x1f\x8b", "a gzip file"),
    (0, b"PK\x03\x04", "a zip archive or office document"),
    (0, b"PK\x05\x06", "a zip archive or office document"),
    (0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old office document"),
    (0, b"{\\rtf", "an RTF document"),
    (0, b"\x89PNG\r\n", "a PNG image"),
    (0, b"GIF87a", "a GIF image"),
    (0, b"GIF89a", "a GIF image"),
    (0, b"\xff\xd8\xff", "a JPEG image"),
    (8, b"WEBP", "a WebP image"),
    (0, b"II*\x00", "a TIFF image"),
    (0, b"MM\x00*", "a TIFF image"),
    (4, b"ftyp", "an MP4 video or a file like it"),
    (0, b"\x1aE\xdf\xa3", "a WebM or Matroska video"),
    (0, b"OggS", "an Ogg audio or video file"),
    (8, b"WAVE", "a WAV audio file"),
    (0, b"ID3\x03", "an MP3 audio file"),
    (0, b"ID3\x04", "an MP3 audio file"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (0, b"Rar!\x1a\x07", "a RAR archive"),
    (0, b"\xfd7zXZ\x00", "an xz file"),
    (0, b"BZh91AY", "a bzip2 file"),
    (0, b"\x28\xb5\x2f\xfd", "a zstd file"),
    (0, b"\x7fELF", "a program"),
]
_UNREAD_FAMILIES = {
    "image": "an image",
    "audio": "an audio file",
    "video": "a video",
    "font": "a font",
    "model": "a 3D model",
    "multipart": "a multipart message",
}
_HTML_ROOT = re.compile(rb"<(?:!doctype\s+html|html)[\s>]", re.IGNORECASE)
_HTML_TAG = re.compile(rb"<(?:head|body|title|meta|div|p|h1|table)[\s>]", re.IGNORECASE)
_BINARY = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")

_BOMS = [
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
]
_DECLARATION = re.compile(
    rb"<meta\b[^>]*?\bcharset\s*=\s*[\"']?\s*([\w.:-]{1,40})|<\?xml\b[^>]*?\bencoding\s*=\s*[\"']([\w.:-]{1,40})",
    re.IGNORECASE,
)
_MEANT = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "iso8859-11": "cp874",
    "tis-620": "cp874",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "big5": "big5hkscs",
}
"""What the web means by a label, which is more than what the label means."""
_WIDE = {"utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"}
_MULTIBYTE = {"utf-8", "gb18030", "cp932", "cp949", "big5hkscs", "euc_jp", "iso2022_jp", "euc_jis_2004", "hz", "johab"}
_SINGLE_BYTE = (
    {f"iso8859-{part}" for part in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)}
    | {f"cp{page}" for page in (437, 737, 775, 850, 852, 855, 857, 862, 866, 874, 1125, *range(1250, 1259))}
    | {"koi8-r", "koi8-u", "koi8-t", "mac-roman", "mac-cyrillic", "mac-greek", "mac-latin2", "mac-turkish"}
)
# Python's codecs include some that are no charsets at all: zlib, base64, punycode, unicode_escape.
_CHARSETS = _WIDE | _MULTIBYTE | _SINGLE_BYTE


def find_kind(body: bytes, content_type: str) -> Kind:
    """Return what to read the body as. Raises `Unreadable`, naming the type, for what is not read."""
    head = body[:SNIFFED_BYTES]
    media_type = content_type.partition(";")[0].strip().lower()
    _refuse_known_files(head)
    if media_type == "text/plain":
        return _text_unless_binary(head, content_type)
    start = head.removeprefix(codecs.BOM_UTF8).lstrip()
    if media_type == "text/html" or (start.startswith(b"<") and _HTML_ROOT.search(head)):
        return Kind.HTML
    if start.startswith(b"<?xml") or media_type in ("text/xml", "application/xml") or media_type.endswith("+xml"):
        return Kind.XML
    if start.startswith(b"<") and _HTML_TAG.search(head):
        return Kind.HTML
    family = media_type.partition("/")[0]
    if family in _UNREAD_FAMILIES:
        raise Unreadable(f"unsupported type: {_UNREAD_FAMILIES[family]}")
    return _text_unless_binary(head, content_type)


def decode(body: bytes, content_type: str) -> str:
    """Return the characters of a body. Bytes that are wrong in its charset become U+FFFD."""
    for bom, marked in _BOMS:
        if body.startswith(bom):
            return body[len(bom) :].decode(marked, "replace")
    charset = _charset_of(_labelled(content_type)) or _declared(body[:DECLARED_BYTES])
    # Text in another charset is hardly ever valid UTF-8 by chance, so a label that says otherwise is wrong.
    if (charset is None or charset in _SINGLE_BYTE) and _is_utf8(body):
        charset = "utf-8"
    return body.decode(charset or _guess(body), "replace")


def _refuse_known_files(head: bytes) -> None:
    if b"%PDF-" in head and not head.lstrip().startswith(b"<"):
        raise Unreadable("unsupported type: a PDF, which is not read yet")
    for offset, magic, name in _MAGIC:
        if head.startswith(magic, offset):
            raise Unreadable(f"unsupported type: {name}")


def _text_unless_binary(head: bytes, content_type: str) -> Kind:
    is_wide = any(head.startswith(bom) for bom, _ in _BOMS) or _charset_of(_labelled(content_type)) in _WIDE
    if _BINARY.search(head) and not is_wide:
        raise Unreadable("unsupported type: binary data")
    return Kind.TEXT


def _labelled(content_type: str) -> str:
    match = re.search(r"charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", content_type, re.IGNORECASE | re.ASCII)
    return match[1] if match else ""


def _declared(head: bytes) -> str | None:
    match = _DECLARATION.search(head)
    charset = _charset_of((match[1] or match[2]).decode("latin-1")) if match else None
    # A declaration that could be read byte by byte was not in UTF-16.
    return "utf-8" if charset in _WIDE else charset


def _charset_of(label: str) -> str | None:
    """Return Python's name for the charset that the web means by the label; None for an unknown one."""
    label = re.sub(r"^windows-(?=\d+$)", "cp", label.lower().removeprefix("x-"))
    try:
        name = codecs.lookup(label).name
    except (LookupError, ValueError):
        return None
    name = _MEANT.get(name, name)
    return name if name in _CHARSETS else None


def _is_utf8(body: bytes) -> bool:
    try:
        # Not the end: a body that was cut may end in the middle of a character.
        codecs.getincrementaldecoder("utf-8")("strict").decode(body, final=False)
    except UnicodeDecodeError:
        return False
    return True


def _guess(body: bytes) -> str:
    # Only text that is not plain ASCII, since markup makes the guess worse. The signs between two pieces are never
    # a part of a character; what is left out of a longer body could cut the last piece in the middle of one.
    pieces = re.split(rb"<[^<>]*>|\n", body[:GUESSED_BYTES])
    if len(body) > GUESSED_BYTES and len(pieces) > 1:
        pieces.pop()
    sample = b"\n".join(piece for piece in pieces if not piece.isascii())
    if sum(byte >= 0x80 for byte in sample) < LEAST_GUESSED_BYTES:
        return "cp1252"
    matches = from_bytes(sample)
    best = matches.best()
    if best is None:
        return "cp1252"
    for match in matches:
        # Several often fit as well; by far the most pages are in this one.
        if match.encoding == "cp1252" and match.coherence >= best.coherence and match.chaos < 0.1:
            return "cp1252"
    return _charset_of(best.encoding) or "cp1252"
