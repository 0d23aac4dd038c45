"""Reports as text for the terminal, as Markdown, and as one HTML file that contains its pictures."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Table:
    """Rows of text under headings; without headings, the first column names the rows."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Picture:
    """A PNG picture with its caption, and its width on the page in pixels."""

    about: str
    png: bytes
    width: int = 520


@dataclass(frozen=True)
class Section:
    """A section of a report: paragraphs, a table, bullet points and pictures, in this order."""

    title: str
    text: Sequence[str] = ()
    table: Table | None = None
    notes: Sequence[str] = ()
    pictures: Sequence[Picture] = ()


def draw_picture(figure: Figure, about: str, width: int = 520) -> Picture:
    """Render a figure as a picture for a page."""
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=150, format="png")
    return Picture(about, buffer.getvalue(), width)


def to_text(section: Section) -> str:
    """A section as plain text; pictures are left out."""
    lines = [section.title, "=" * len(section.title), *section.text, ""]
    if section.table is not None:
        rows = [section.table.headings, *section.table.rows] if section.table.headings else section.table.rows
        widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))] if rows else []
        lines += ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        if section.table.headings:
            lines.insert(len(lines) - len(section.table.rows), "  ".join("-" * width for width in widths))
        lines.append("")
    lines += section.notes
    return "\n".join(lines).rstrip() + "\n"


def to_markdown(section: Section) -> str:
    """A section as Markdown; pictures are left out."""
    blocks = [f"## {section.title}", *section.text]
    if section.table is not None:
        # A Markdown table needs a row of headings.
        width = len(next(iter(section.table.rows), ()))
        headings = section.table.headings or [""] * width
        rows = [_markdown_row(headings), "|" + "---|" * len(headings)]
        blocks.append("\n".join(rows + [_markdown_row(row) for row in section.table.rows]))
    if section.notes:
        blocks.append("\n".join(f"- {note}" for note in section.notes))
    return "\n\n".join(blocks) + "\n"


def to_html(title: str, sections: Sequence[Section]) -> str:
    """An HTML page that contains all sections and pictures."""
    # A section with the title of the page needs no heading.
    parts = "\n".join(_section(section, "" if section.title == title else section.title) for section in sections)
    return _PAGE.format(title=html.escape(title), parts=parts)


def _markdown_row(row: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def _section(section: Section, title: str) -> str:
    parts = [f"<h2>{html.escape(title)}</h2>"] if title else []
    parts += [f"<p>{html.escape(text)}</p>" for text in section.text]
    if section.table is not None:
        head = ["th"] * len(section.table.headings)
        rows = [_html_row(section.table.headings, head)] if head else []
        rows += [_html_row(row, ["td" if head else "th", *["td"] * (len(row) - 1)]) for row in section.table.rows]
        parts += ["<table>", *rows, "</table>"]
    if section.notes:
        parts += ["<ul>", *(f"<li>{html.escape(note)}</li>" for note in section.notes), "</ul>"]
    for picture in section.pictures:
        data, about = base64.b64encode(picture.png).decode(), html.escape(picture.about, quote=True)
        image = f'<img width="{picture.width}" alt="{about}" src="data:image/png;base64,{data}">'
        parts.append(f"<figure>{image}<figcaption>{about}</figcaption></figure>")
    return "\n".join(parts)


def _html_row(row: Sequence[str], tags: Sequence[str]) -> str:
    cells = (f"<{tag}>{html.escape(cell)}</{tag}>" for cell, tag in zip(row, tags, strict=True))
    return f"<tr>{''.join(cells)}</tr>"


_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.6rem; }}
h2 {{ font-size: 1.2rem; margin-top: 2.5rem; }}
table {{ border-collapse: collapse; margin: 1rem 0 1.5rem; }}
th, td {{ text-align: left; vertical-align: top; padding: 0.25rem 1.2rem 0.25rem 0; border-bottom: 1px solid #ddd; }}
th {{ font-weight: 600; white-space: nowrap; }}
figure {{ display: inline-block; margin: 0 1rem 1.5rem 0; vertical-align: top; max-width: 100%; }}
figcaption {{ color: #666; font-size: 0.85rem; }}
img {{ max-width: 100%; height: auto; }}
</style></head><body>
<h1>{title}</h1>
{parts}
</body></html>
"""
