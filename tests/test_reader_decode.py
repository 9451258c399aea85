"""From bytes to characters: the type and the charset that a page really has, whatever its label says."""

import codecs

import pytest

from gligabao.reader import decode as room
from gligabao.reader.decode import Kind, decode, find_kind
from gligabao.reader.faults import Unreadable

JAPANESE = "港の浚渫は九週間かかった。"
RUSSIAN = "Работы в гавани заняли девять недель, пирс стоял."


@pytest.mark.parametrize(
    ("body", "content_type", "text"),
    [
        (codecs.BOM_UTF8 + "é".encode(), "text/html; charset=koi8-r", "é"),
        (codecs.BOM_UTF16_LE + "é".encode("utf-16-le"), "text/plain", "é"),
        (codecs.BOM_UTF16_BE + "é".encode("utf-16-be"), "text/plain; charset=utf-8", "é"),
        (codecs.BOM_UTF32_LE + "é".encode("utf-32-le"), "text/plain", "é"),
        ("é".encode("utf-16-le"), "text/plain; charset=utf-16le", "é"),
        (JAPANESE.encode("cp932"), "text/html; charset=Shift_JIS", JAPANESE),
        (JAPANESE.encode("cp932"), 'text/html; charset="x-sjis"', JAPANESE),
        (JAPANESE.encode("euc_jp"), "text/html; charset = 'EUC-JP'", JAPANESE),
        (JAPANESE.encode("iso2022_jp"), "text/html; charset=iso-2022-jp", JAPANESE),
        ("镕基".encode("gb18030"), "text/html; charset=gb2312", "镕基"),
        ("똠방각하".encode("cp949"), "text/html; charset=euc-kr", "똠방각하"),
        ("ไทย".encode("cp874"), "text/html; charset=windows-874", "ไทย"),
        (RUSSIAN.encode("koi8-r"), "text/html; charset=koi8-r", RUSSIAN),
        ("“a” €".encode("cp1252"), "text/html; charset=iso-8859-1", "“a” €"),
        ("“a”".encode("cp1252"), "text/html; charset=us-ascii", "“a”"),
        ("größer".encode(), "text/html; charset=iso-8859-1", "größer"),
        ("größer".encode(), "text/html", "größer"),
        ("größer".encode()[:-3], "text/html; charset=iso-8859-1", "grö\ufffd"),
        ("größer".encode() + "ß".encode()[:1], "text/html", "größer\ufffd"),
        (b"good \xff\xfe end", "text/html; charset=utf-8", "good \ufffd\ufffd end"),
        ("déjà creusé".encode(), "text/html; charset=utf8mb4-nonsense", "déjà creusé"),
        ("déjà".encode("cp1252"), "text/html; charset=base64", "déjà"),
    ],
)
def test_the_charset_is_found(body: bytes, content_type: str, text: str):
    assert decode(body, content_type) == text


@pytest.mark.parametrize(
    "declaration",
    [
        '<meta charset="koi8-r">',
        "<META CHARSET=KOI8-R>",
        '<meta http-equiv="Content-Type" content="text/html; charset=koi8-r">',
        '<?xml version="1.0" encoding="koi8-r"?>',
        "<!-- " + "x" * 1900 + " --><meta charset=koi8-r>",
    ],
)
def test_a_page_may_declare_its_charset_itself(declaration: str):
    assert RUSSIAN in decode(declaration.encode() + RUSSIAN.encode("koi8-r"), "text/html")


def test_the_header_beats_the_page():
    body = b"<meta charset=koi8-r>" + RUSSIAN.encode("cp1251")
    assert RUSSIAN in decode(body, "text/html; charset=windows-1251")


def test_a_declaration_that_cannot_be_true_is_not_believed():
    assert "größer" in decode("<meta charset=utf-16>größer".encode(), "text/html")
    assert "größer" in decode("<meta charset=iso-8859-1>größer".encode(), "text/html")


@pytest.mark.parametrize(
    ("text", "charset"),
    [
        (RUSSIAN, "koi8-r"),
        (RUSSIAN, "cp1251"),
        (JAPANESE, "cp932"),
        (JAPANESE, "euc_jp"),
        ("海港的疏浚工作历时九个星期完成。", "gb18030"),
        ("Le port fut creusé en été, déjà. Les bateaux arrivèrent de très loin.", "cp1252"),
        ("Der Hafen wurde größer, früher als geplant, über die Straße hinaus.", "cp1252"),
        ("Přístav byl prohlouben na jaře, práce trvaly devět týdnů.", "cp1250"),
    ],
)
def test_a_charset_that_nobody_declares_is_guessed(text: str, charset: str):
    menu = "<li><a href='/about/us.html' class='menu'>About the company</a></li>\n" * 40
    page = menu + f"<p>{text}</p>\n" * 5 + menu
    assert decode(page.encode(charset), "text/html") == page


def test_a_guess_is_not_led_astray_where_the_sample_ends():
    text = f"<p>{JAPANESE}</p>\n" * 2000
    assert decode(text.encode("cp932"), "text/html") == text


def test_what_cannot_be_guessed_is_read_all_the_same():
    assert decode(bytes(range(128, 256)) * 8, "text/plain")


def test_every_charset_that_is_accepted_is_known_to_python_by_that_name():
    assert {codecs.lookup(name).name for name in room._CHARSETS} == room._CHARSETS
    for name in room._CHARSETS:
        assert b"abc".decode(name, "replace")


@pytest.mark.parametrize(
    ("body", "content_type", "kind"),
    [
        (b"<p>x", "text/html", Kind.HTML),
        (b"just words", "TEXT/HTML; charset=utf-8", Kind.HTML),
        (b"<!DOCTYPE html><p>x", "", Kind.HTML),
        (b"\xef\xbb\xbf \n<!-- x --><html lang=en>", "application/octet-stream", Kind.HTML),
        (b"<html>gone", "application/pdf", Kind.HTML),
        (b"<html>x", "application/xml", Kind.HTML),
        (b'<?xml version="1.0"?><html xmlns="x">', "application/xhtml+xml", Kind.HTML),
        (b"<div>x</div>", "", Kind.HTML),
        (b"<html>&lt;p>", "text/plain", Kind.TEXT),
        (b"<rss><title>x", "application/rss+xml", Kind.XML),
        (b'<?xml version="1.0"?><feed><title>x', "", Kind.XML),
        (b"<svg><title>x", "image/svg+xml", Kind.XML),
        (b'{"a": 1}', "application/json", Kind.TEXT),
        (b"a,b\n", "text/csv", Kind.TEXT),
        (b"# Title", "", Kind.TEXT),
        (b"# Title", "application/octet-stream", Kind.TEXT),
        ("x".encode("utf-16"), "text/plain", Kind.TEXT),
        ("x".encode("utf-16-le"), "text/plain; charset=utf-16le", Kind.TEXT),
        (b"In HTML, <p> begins a paragraph", "", Kind.TEXT),
        (b"<html><p>A PDF begins with %PDF-1.4", "text/html", Kind.HTML),
        (b"ID3 tags, explained", "text/plain", Kind.TEXT),
    ],
)
def test_the_bytes_say_more_than_the_label(body: bytes, content_type: str, kind: Kind):
    assert find_kind(body, content_type) is kind


@pytest.mark.parametrize(
    ("body", "content_type", "named"),
    [
        (b"junk\n%PDF-1.7", "text/plain", "a PDF"),
        (b"\xff\xd8\xff\xe0", "image/jpeg", "a JPEG image"),
        (b"RIFF\x00\x00\x00\x00WEBP", "text/html", "a WebP image"),
        (b"PK\x03\x04", "application/vnd.openxmlformats", "a zip archive or office document"),
        (b"a\x00b", "", "binary data"),
        (b"a\x00b", "text/plain", "binary data"),
        (b"abc", "font/woff2", "a font"),
        (b"abc", "audio/x", "an audio file"),
    ],
)
def test_what_is_not_read_is_named(body: bytes, content_type: str, named: str):
    with pytest.raises(Unreadable, match=f"^unsupported type: {named}"):
        find_kind(body, content_type)
