import base64
import re
from html.parser import HTMLParser

from matplotlib.figure import Figure

from topomask.pictures.pages import Picture, Section, Table, draw_picture, to_html, to_markdown, to_text

TABLE = Table(["row", "value"], [["a | b", "1"], ["longer name", "22"]])
SECTION = Section("A <title>", ["One & two."], TABLE, ["A note with <b>."], [Picture('It\'s "x" < y', b"\x89PNG", 300)])


class Tags(HTMLParser):
    """Fails where tags are not closed in order."""

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attrs):  # noqa: ARG002
        self.seen.append(tag)
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_text_has_columns_of_one_width():
    assert to_text(SECTION) == (
        "A <title>\n=========\nOne & two.\n\n"
        "row          value\n-----------  -----\na | b        1\nlonger name  22\n\n"
        "A note with <b>.\n"
    )


def test_text_needs_neither_headings_nor_rows_nor_a_table():
    assert to_text(Section("T", table=Table([], [["a", "1"], ["bb", "2"]]))) == "T\n=\n\na   1\nbb  2\n"
    assert to_text(Section("T", table=Table(["a", "b"], []))) == "T\n=\n\na  b\n-  -\n"
    assert to_text(Section("T", table=Table([], []))) == to_text(Section("T")) == "T\n=\n"


def test_markdown_has_a_table_of_equal_rows():
    text = to_markdown(SECTION)
    assert text.startswith("## A <title>\n\nOne & two.\n\n| row | value |\n|---|---|\n| a \\| b | 1 |\n")
    assert text.endswith("| longer name | 22 |\n\n- A note with <b>.\n")


def test_a_markdown_table_without_headings_still_has_their_row():
    assert to_markdown(Section("T", table=Table([], [["a", "1"]]))) == "## T\n\n|  |  |\n|---|---|\n| a | 1 |\n"


def test_a_page_is_one_file_that_holds_its_pictures():
    page = to_html("Page", [SECTION, Section("Other")])
    assert "http" not in page
    assert not re.search(r"<(script|link)|src=\"(?!data:)", page)
    assert f"data:image/png;base64,{base64.b64encode(SECTION.pictures[0].png).decode()}" in page
    assert page.count("<h2>") == 2
    tags = Tags()
    tags.feed(page)
    assert not tags.open
    assert {"table", "ul", "figure"} <= set(tags.seen)


def test_what_looks_like_html_is_shown_as_it_is():
    page = to_html("<i>Page</i>", [SECTION])
    for text in ("<i>", "<title>\n", "A <title>", "<b>", '"x" <'):
        assert text not in page
    for text in ("&lt;i&gt;Page", "A &lt;title&gt;", "One &amp; two.", "note with &lt;b&gt;", "&quot;x&quot; &lt; y"):
        assert text in page


def test_a_title_is_not_repeated():
    assert "<h2>" not in to_html("Alone", [Section("Alone", ["Text."])])
    assert "<h2>" not in to_html("Page", [Section("", ["Text."])])
    assert "<h2>Part</h2>" in to_html("Page", [Section("Part")])


def test_rows_without_headings_are_named_by_their_first_cell():
    page = to_html("Page", [Section("", table=Table([], [["name", "value"]]))])
    assert "<tr><th>name</th><td>value</td></tr>" in page


def test_a_figure_becomes_a_picture():
    picture = draw_picture(Figure(figsize=(2, 1)), "Nothing", width=200)
    assert picture.png.startswith(b"\x89PNG")
    assert (picture.about, picture.width) == ("Nothing", 200)
