"""From a page to its text: what a visitor sees stays, what is hidden goes, and no page takes long."""

import inspect
import subprocess
import sys

import pytest

from gligabao.reader.faults import Unreadable
from gligabao.reader.markup import decode_entities, read_attributes
from gligabao.reader.text import read_text


def html(markup: str) -> str:
    _, _, text = read_text(markup.encode(), "text/html; charset=utf-8", "https://page.test/a/b")
    return text


def title(markup: str) -> str:
    _, found, _ = read_text(markup.encode(), "text/html; charset=utf-8", "https://page.test/")
    return found


# Words apart and words joined


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("<p>one</p><p>two</p>", "one\n\ntwo"),
        ("<div>one</div><div>two</div>", "one\ntwo"),
        ("<h1>One</h1>two", "One\n\ntwo"),
        ("one<br>two<br/>three", "one\ntwo\nthree"),
        ("<ul><li>one<li>two</ul>after", "- one\n- two\n\nafter"),
        ("<ul><li><p>one</p></li></ul>", "- one"),
        ("<table><tr><td>1912</td><td>340</td></tr><tr><th>a<th>b</table>", "1912\t340\na\tb"),
        ("a<b>b</b>c <i>d</i>e", "abc de"),
        ("<span>a</span> <span>b</span>\n\n c", "a b c"),
        ("a<button>b</button><button>c</button>", "a b c"),
        ("a&nbsp;b", "a b"),
        ("x<hr>y", "x\n\ny"),
        ("<pre>a\n  b<br>c</pre>d", "a\n  b\nc\n\nd"),
        ("<pre>\n\n\n\na</pre>", "a"),
        ("<option>a<option>b", "a\nb"),
        ("no tags at all", "no tags at all"),
        ("<p>a<p>b <b>c <i>d</b> e", "a\n\nb c d e"),
        ("a<b title='1 > 0'>b</b>", "ab"),
        ('a<b title="unclosed>b</b> c', "ab c"),
        ("a < b and 3<4 <- x </ gone> y", "a < b and 3<4 <- x y"),
        ("a<>b", "a<>b"),
        ("<p>end with <b", "end with"),
        ("<textarea>a <b></textarea>", "a <b>"),
        ("<title>no end<body><p>text", "text"),
    ],
)
def test_words_are_kept_apart_or_joined_as_the_page_shows_them(markup: str, text: str):
    assert html(markup) == text


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("Fish &amp; chips &lt; 5", "Fish & chips < 5"),
        ("&amp;amp; once", "&amp; once"),
        ("na&iuml;ve &#8212; &#x2026; &#128;", "naïve — … €"),
        ("&nosuch; &", "&nosuch; &"),
        ("&#" + "9" * 5000 + "; x", "\ufffd x"),
        ("&#x" + "f" * 5000 + "; x", "\ufffd x"),
        ("&#000000000065; x", "\ufffd x"),
    ],
)
def test_entities_are_decoded_once(markup: str, text: str):
    assert html(markup) == text


def test_a_page_is_read_with_any_kind_of_line_end():
    assert read_text(b"a\r\nb\rc\n", "text/plain", "")[2] == "a\nb\nc"


def test_plain_text_is_left_as_it_is():
    text = "Line one\n  indented <b>not markup</b> & so on\tx"
    assert read_text(text.encode(), "text/plain", "")[2] == text


# What is not seen


@pytest.mark.parametrize(
    "hidden",
    [
        "<script>HIDDEN</script>",
        "<script>if (a < b) '</p>HIDDEN'</script >",
        "<STYLE>HIDDEN</STYLE>",
        "<!-- HIDDEN -->",
        "<!--[if IE]>HIDDEN<![endif]-->",
        "<!-- > HIDDEN --!>",
        "<!x HIDDEN>",
        "<? HIDDEN >",
        "<template><p>HIDDEN</p></template>",
        "<svg><title>HIDDEN</title><path/></svg>",
        "<iframe>HIDDEN</iframe>",
        "<video>HIDDEN</video>",
        "<div hidden>HIDDEN</div>",
        "<div hidden=until-found>HIDDEN</div>",
        "<div HIDDEN=''><div>HIDDEN</div>HIDDEN</div>",
        "<div style='display:none'>HIDDEN</div>",
        '<div style="color:red; DISPLAY : NONE !important">HIDDEN</div>',
        "<div style=display&#58;none>HIDDEN</div>",
        "<p style='visibility: hidden'>HIDDEN</p>",
        "<p style=visibility:collapse>HIDDEN</p>",
        "<p style='opacity:0'>HIDDEN</p>",
        "<p style='opacity: 0.0;x:y'>HIDDEN</p>",
        "<p style='font-size:0px'>HIDDEN</p>",
        "<p style='font-size:.0em;'>HIDDEN</p>",
        "<p style='position:absolute;left:-9999px'>HIDDEN</p>",
        "<p style='text-indent:-10000px'>HIDDEN</p>",
        "<p hidden>HIDDEN<div>shown</div>",
        "<p hidden>HIDDEN <b>HIDDEN<p>shown</p>",
        "<ul><li hidden>HIDDEN<ul><li>HIDDEN</ul>HIDDEN<li>shown</ul>",
        "<ul><li hidden>HIDDEN</ul>shown",
        "<table><tr><td hidden>HIDDEN<td>shown<tr hidden><td>HIDDEN<td>HIDDEN<tr><td>shown</table>",
        "<dl><dt hidden>HIDDEN<dd>shown</dl>",
        "<span hidden>HIDDEN</i> HIDDEN</span>",
        "<div hidden>HIDDEN<br>HIDDEN<img>HIDDEN<input></div>",
        "<div><span hidden>HIDDEN</div>shown",
        "<div hidden><svg><path/></svg>HIDDEN</div>",
        "<input type=hidden value=HIDDEN>",
        "<img alt=HIDDEN>",
    ],
)
def test_what_a_visitor_does_not_see_is_left_out(hidden: str):
    text = html(f"<body><p>before</p>{hidden}<p>after</p>")
    assert "HIDDEN" not in text
    assert text.startswith("before")
    assert text.endswith("after")
    assert ("shown" in text) == ("shown" in hidden)


@pytest.mark.parametrize(
    "shown",
    [
        "<body hidden>shown",
        "<html style='visibility:hidden'><body style='opacity:0'>shown",
        "<p style='opacity:0.5'>shown",
        "<p style='opacity:05'>shown",
        "<p style='font-size:0.9em'>shown",
        "<p style='margin-left:-10px;left:-100px'>shown",
        "<p style='backdrop-display:none'>shown",
        "<p aria-hidden=true>shown",
        "<p class='hidden style'>shown",
        "<p style='color:red' style='display:none'>shown",
        "<svg/>shown",
        "<details><summary>x</summary>shown</details>",
        "<math><mi>shown</mi></math>",
        "<![CDATA[x]]>shown",
        "<!-->shown-->",
        "<!--->shown-->",
    ],
)
def test_what_a_visitor_may_see_is_kept(shown: str):
    assert "shown" in html(shown)


def test_signs_that_nobody_sees_are_taken_out():
    seen = html(
        "<title>x</title>pass\u200bword so\u00adft \u202ereversed\u202c \ufeff\u2060tag\U000e0041ged"
        " &#8203;&#173;\x07\x00end"
    )
    assert seen == "password soft reversed tagged end"
    assert read_text("\ufeffa\x00b\x1b[0m\ufe0f".encode(), "text/plain", "")[2] == "ab[0m"
    assert title("<title>a\u200bb\n c</title>x") == "ab c"


def test_halves_of_a_pair_are_taken_out():
    # A database in UTF-8 refuses them.
    assert read_text("a\U0001f600b".encode("utf-16-le")[:4] + b"b\x00", "text/plain; charset=utf-16le", "")[2].encode()
    assert html("a&#xD800;b").encode()


def test_noscript_is_read_where_there_is_hardly_anything_else():
    shell = "<div id=root></div><noscript><p>The tide table</p></noscript><script>x</script>"
    assert html(shell) == "The tide table"
    assert "tide" not in html(f"<p>{'A long page. ' * 30}</p>{shell}")


def test_a_page_that_only_sends_on_names_the_target():
    assert html("<meta http-equiv=refresh content=\"0; URL='../new'\">").endswith("https://page.test/new")
    assert html("<meta http-equiv=refresh content='5;url=/x'><p>Wait.</p>") == "Wait."


@pytest.mark.parametrize("body", [b"", b" \n\t", b"<html></html>", b"<p>\xe2\x80\x8b</p>", b"<div hidden>x</div>"])
def test_a_page_without_text_is_a_fault(body: bytes):
    with pytest.raises(Unreadable):
        read_text(body, "text/html", "")


# Titles, attributes, XML


def test_the_title_is_the_first_that_is_not_in_a_picture():
    page = "<svg><title>icon</title></svg><title> A &amp;\n B </title><title>other</title><p>text"
    assert title(page) == "A & B"
    assert html(page) == "text"
    assert len(title(f"<title>{'x' * 5000}</title>x")) == 300
    assert title("<p>none") == ""


def test_attributes_are_read_as_a_browser_reads_them():
    assert read_attributes(" A=1 b='2 > 1' c=\"&amp;\" d a=3 e = x/") == {
        "a": "1",
        "b": "2 > 1",
        "c": "&",
        "d": "",
        "e": "x/",
    }
    assert decode_entities("x &lt; y") == "x < y"


def test_xml_is_read_as_its_text():
    feed = """<?xml version="1.0"?><!DOCTYPE r [<!ENTITY x SYSTEM "file:///etc/passwd">]><rss><channel>
        <item><title>Ice again</title><link>https://page.test/ice</link>
        <description>&lt;p&gt;The pier &lt;b&gt;closed&lt;/b&gt;.&lt;/p&gt;</description></item>
        <item><title><![CDATA[<b>Thaw</b> & flood]]></title><script/>&x;</item></channel></rss>"""
    text = read_text(feed.encode(), "application/rss+xml", "")[2]
    assert text == "Ice again\nhttps://page.test/ice\nThe pier closed.\nThaw & flood\n&x;"


# Pages made to take long

REPEATED = """
    <!-- <![CDATA[ <!DOCTYPE <? <!x <a </a < & &a &amp &#9 &#x41 <a_b="x"_ <a_b=" <a_b='" <a_= <a_/ ='_ <a_=" --> --!>
    <br> text<br> <div> </div> <p> <li> <td>x <b>x</b> <![if_x] <![ </ <!--> <script> <script></script> </script <style>
    <title> <textarea> <title </title> <svg> <svg/> <template> <noscript>x <noscript></noscript> <pre> <iframe>
    <div_hidden> <p_hidden> <li_hidden><ul> <p_style=" <p_style=display:none <p_style="opacity:0000 <dt_hidden><dd>
    <meta_http-equiv=refresh_content="url <p_hidden><table> \\n \\u200b \\xa0 &nosuchthing; &lt;br&gt; <xmp>
    <a_b="'><c_d='">
""".split()


def _read_hostile_pages(repeated: list[str]) -> None:
    """Run in a process of its own, which the system kills when it has used up its time."""
    import resource

    # Each page takes some 0.05 s; a page that is searched again from each of its signs would take minutes.
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
    size = 128 * 1024
    pages = ["<p>" + sign * (size // len(sign)) for sign in repeated]
    pages.append("<a " + " ".join(f"a{n}=b" for n in range(100_000)) + " hidden>x")
    pages.append("<div>" * 20_000 + "x" + "</div>" * 20_000)
    pages.append("<p hidden>" + "<b>" * 20_000 + "</i>" * 20_000 + "</b>" * 10_000 + "x")
    pages.append("<li hidden><ul>" + "<b>" * 20_000 + "<li></li>" * 20_000)
    pages += [f'<p style="opacity:{"0" * size}1">', f"<a ={' ' * size}", f"<a style{' ' * size}>", f"&#{'9' * size}"]
    pages += [f'<p style="{"display " * (size // 8)}">', f'<p style="display{" " * size}">']
    for page in pages:
        for content_type in ("text/html", "application/xml", "application/unknown"):
            try:
                read_text(page.encode(), content_type, "https://page.test/")
            except Unreadable:
                pass


def test_no_page_takes_longer_than_its_size_allows():
    pytest.importorskip("resource")
    signs = [sign.replace("_", " ").encode().decode("unicode_escape") for sign in REPEATED]
    code = "\n".join(
        [
            "from gligabao.reader.faults import Unreadable",
            "from gligabao.reader.text import read_text",
            inspect.getsource(_read_hostile_pages),
            f"_read_hostile_pages({signs!r})",
        ]
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
