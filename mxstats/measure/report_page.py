"""The report's page: its style, its script, and pieces of HTML in which every text is escaped."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1250px; padding: 0 1em;
  color: #1a1a1a; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; }
th, td { padding: 3px 8px; text-align: right; border-bottom: 1px solid #ddd; }
th.text, td.text { text-align: left; }
table.sorts th { cursor: pointer; position: sticky; top: 0; background: #f4f4f4; }
table.sorts th[aria-sort=ascending]::after { content: " \\25b2"; }
table.sorts th[aria-sort=descending]::after { content: " \\25bc"; }
.wide { overflow-x: auto; } svg { max-width: 100%; height: auto; }
td.holds { color: #00704a; } td.biased { color: #8a5a00; } td.depends { color: #b00020; }
details { margin: .5em 0; } summary { cursor: pointer; } code { white-space: pre-wrap; }
.note { color: #555; font-size: 13px; }
"""

# Clicking a column's head sorts by it, and again the other way; numbers by value, not by digits.
SCRIPT = """
document.querySelectorAll("table.sorts").forEach(table => {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const sort = () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const value = row => row.cells[column].dataset.value;
      const numeric = !head.classList.contains("text");
      const rows = [...table.tBodies[0].rows].sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        const order = numeric ? parseFloat(x) - parseFloat(y) : x.localeCompare(y);
        return (up ? 1 : -1) * (Number.isNaN(order) ? 0 : order);
      });
      table.tBodies[0].append(...rows);
    };
    head.tabIndex = 0;
    head.addEventListener("click", sort);
    head.addEventListener("keydown", event => { if (event.key === "Enter") sort(); });
  });
});
"""


def page(title: str, body: Iterable[str]) -> str:
    """One self-contained HTML file: ``title`` is text, ``body`` is HTML."""
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            *body,
            f"<script>{SCRIPT}</script></body></html>",
            "",
        ]
    )


def table(
    columns: Sequence[tuple[str, str, str]],
    lines: Iterable[dict[Any, Any]],
    *,
    sorts: bool = False,
    classes: dict[str, str] | None = None,
) -> str:
    """A table of HTML.

    Parameters
    ----------
    columns
        Key of a line, head, and number format ("" for text) of each column.
    lines
        Dictionaries.
    sorts
        Whether it sorts on a click.
    classes
        Of cells, by their text.
    """
    heads = "".join(
        f'<th scope="col"{_class("" if how else "text")}>{escape(head)}</th>'
        for _, head, how in columns
    )
    rows = []
    for line in lines:
        cells = []
        for key, _, how in columns:
            value = line[key]
            missing = value is None or value != value
            shown = "–" if missing else _number(value, how) if how else str(value)
            name = (classes or {}).get(shown, "") if not how else ""
            kind = " ".join(part for part in ("" if how else "text", name) if part)
            sort = ' data-value="' + escape("nan" if missing else str(value)) + '"' if sorts else ""
            cells.append(f"<td{_class(kind)}{sort}>{escape(shown)}</td>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    name = ' class="sorts"' if sorts else ""
    return (
        f'<div class="wide"><table{name}><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def signed(value: float) -> str:
    """A number to four digits behind the point, with its sign."""
    return _number(value, "+.4f")


def visible(text: str) -> str:
    """A token as one can see it: quoted with its escapes where it has blanks or none to see."""
    return text if text.isprintable() and text == text.strip() and text else repr(text)


def _number(value: Any, how: str) -> str:
    """A number in a format; what is shown as 0 has no minus sign."""
    shown = format(value, how)
    if shown.startswith("-") and not shown.strip("-0."):
        return format(0.0, how)
    return shown


def paragraph(text: str, name: str = "") -> str:
    """A paragraph of plain text."""
    return f"<p{_class(name)}>{escape(text)}</p>"


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
