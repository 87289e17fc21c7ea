"""Each reader: what becomes a paragraph, what a heading, and what is left out."""

import io
import sys
import zipfile

import docx
import pypdf
import pytest

from budwood.data.documents import office
from budwood.data.documents.html import read_html
from budwood.data.documents.markdown import read_markdown
from budwood.data.documents.office import read_docx, read_pdf
from budwood.data.documents.plain import read_plain
from budwood.data.problems import Origin
from budwood.errors import DataError, NotSupportedError

ORIGIN = Origin("file")


def read(reader, data):
    return reader(data.encode() if isinstance(data, str) else data, ORIGIN).document(ORIGIN)


def headings(document):
    return [(document.text[slice(*one.span)], one.level) for one in document.headings]


def test_plain_text_joins_what_width_has_broken_and_keeps_lists():
    long = "This line is long enough to have been broken by its own width and"
    short = "goes on with hyphen-\nated words that stand on a line of this width, exam-\nples."
    text = f"A Title\n\n{long}\n{short}\n\n- one\n- two"
    document = read(read_plain, text)
    assert document.text.split("\n\n")[0] == "A Title"
    assert document.text.split("\n\n")[1] == (
        f"{long} goes on with hyphen-\nated words that stand on a line of this width, examples."
    )
    assert document.text.split("\n\n")[2] == "- one\n- two"
    assert headings(document) == [("A Title", 1)]
    assert document.title == "A Title"


@pytest.mark.parametrize("line", ["It ends.", "lower case", "x" * 11 + " y" * 11, "- item"])
def test_ordinary_lines_are_no_headings(line):
    assert read(read_plain, f"{line}\n\nMore text follows here.").headings == ()


def test_markdown_keeps_words_and_headings():
    document = read(
        read_markdown,
        "---\ntitle: 'Notes of May'\n---\n# One *two*\n"
        "Some **bold** and _thin_ [link](http://x.y) ![pic](p.png) text.\n\n"
        "> quoted `co_de*` and snake_case_word 2*3*4 \\* <b>raw</b>\n\n"
        "Sub\n---\n* item\n+ [x] done\n\n| a | b |\n|--|:-:|\n"
        "| 1 | 2 |\n\n```py\nx = '# no heading'\n```\n\n***\n<!-- gone -->\n[ref]: http://z\n",
    )
    assert document.text.split("\n\n") == [
        "One two",
        "Some bold and thin link pic text.",
        "quoted co_de* and snake_case_word 2*3*4 * raw",
        "Sub",
        "- item\n- done",
        "a, b",
        "1, 2",
        "x = '# no heading'",
    ]
    assert headings(document) == [("One two", 1), ("Sub", 2)]
    assert document.title == "Notes of May"


def test_html_keeps_text_and_leaves_the_page_out():
    document = read(
        read_html,
        "<html><head><title>A  Page</title><style>p{}</style></head><body><nav><a>Menu</a></nav>"
        "<h1>Top <i>one</i></h1>"
        "<p>Fish &amp; chips<br>for   <b>two</b>.</p><script>var x='<p>no</p>'</script><ul><li>a<li>b</ul>"
        "<table><tr><th>k</th><th>v</th></tr><tr><td>1<td>2</tr></table><pre>x\n  y</pre><h2>Sub</h2>tail",
    )
    assert document.text.split("\n\n") == [
        "Top one", "Fish & chips\nfor two.", "- a", "- b", "k, v", "1, 2", "x\n  y", "Sub", "tail",
    ]  # fmt: skip
    assert headings(document) == [("Top one", 1), ("Sub", 2)]
    assert document.title == "A Page"


def test_html_without_head_and_body_tags_and_in_a_form():
    document = read(read_html, "<title>T</title><form><p>One &nbsp; two.<div>Three.</form>")
    assert (document.title, document.text) == ("T", "One two.\n\nThree.")


def test_html_in_the_encoding_that_it_names():
    page = '<meta charset="windows-1252"><body><p>Zoë’s café stands in the old town.</p>'
    assert "Zoë’s café" in read(read_html, page.encode("windows-1252")).text
    with pytest.raises(DataError, match="not UTF-8"):
        read(read_html, page.replace("windows-1252", "unheard-of").encode("windows-1252"))


def make_pdf(lines):
    """A PDF of one page with a text layer, written by hand."""
    shown = b"".join(b"(%s) Tj 0 -14 Td " % line.encode() for line in lines)
    stream = b"BT /F1 12 Tf 72 700 Td " + shown + b"ET"
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R"
        b" /Resources << /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
    ]
    made, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, start=1):
        places.append(len(made))
        made += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    head = b"xref\n0 5\n0000000000 65535 f \n%strailer\n<< /Size 5 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % (
        table,
        len(made),
    )
    return made + head


def test_pdf_text_is_joined_over_lines():
    lines = ["The Harrowmere Boat Library lends small wooden boats in the same", "way as other libraries lend books."]
    assert read(read_pdf, make_pdf(lines)).text == " ".join(lines)


def blank_pdf(password=""):
    writer, out = pypdf.PdfWriter(), io.BytesIO()
    writer.add_blank_page(100, 100)
    if password:
        writer.encrypt(password, algorithm="RC4-128")
    writer.write(out)
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (blank_pdf(), "(?s)1 pages of the PDF have no text.*OCR"),
        (blank_pdf("secret"), "protected by a password"),
        (b"%PDF-1.4\nbroken", "not a sound PDF"),
        (b"", "not a sound PDF"),
    ],
    ids=["scan", "password", "broken", "empty"],
)
def test_pdfs_without_text(data, message):
    with pytest.raises(DataError, match=message):
        read(read_pdf, data)


def make_docx():
    document, out = docx.Document(), io.BytesIO()
    document.core_properties.title = "Fleet"
    document.add_heading("The fleet", level=1)
    document.add_paragraph("The oldest boat is of larch.")
    table = document.add_table(rows=2, cols=2)
    for cell, text in zip(table._cells, ("boat", "length", "Heron", "4 metres"), strict=True):
        cell.text = text
    document.add_heading("Paint", level=2)
    document.add_paragraph("It is green.")
    document.save(out)
    return out.getvalue()


def test_docx_paragraphs_headings_and_tables_in_order():
    document = read(read_docx, make_docx())
    expected = [
        "The fleet",
        "The oldest boat is of larch.",
        "boat, length",
        "Heron, 4 metres",
        "Paint",
        "It is green.",
    ]
    assert document.text.split("\n\n") == expected
    assert headings(document) == [("The fleet", 1), ("Paint", 2)]
    assert document.title == "Fleet"


def test_damaged_and_swollen_docx(monkeypatch):
    for data in (b"PK\x03\x04 broken", b""):
        with pytest.raises(DataError, match="not a sound Word file"):
            read(read_docx, data)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a", "x")
    with pytest.raises(DataError, match="not a sound Word file"):
        read(read_docx, archive.getvalue())
    monkeypatch.setattr(office, "MAX_UNPACKED", 100)
    with pytest.raises(DataError, match="unpacks to"):
        read(read_docx, make_docx())


@pytest.mark.parametrize(("module", "reader"), [("pypdf", read_pdf), ("docx", read_docx)])
def test_a_missing_reader_names_the_extra(monkeypatch, module, reader):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(NotSupportedError, match=r"(?s)file: .* not installed.*budwood\[documents\]"):
        read(reader, b"")
