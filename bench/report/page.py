"""HTML: one page that needs nothing else."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1c1f24; background: #fff; margin: 0 auto; max-width: 72rem; padding: 1rem 1.5rem 4rem; }
h1 { font-size: 1.8rem; margin: 1rem 0 .2rem; } h2 { margin: 2.6rem 0 .4rem; border-bottom: 2px solid #d7dbe0; } h3 { margin: 1.6rem 0 .3rem; }
p, li { max-width: 54rem; } .lead { color: #4a5059; }
table { border-collapse: collapse; font-size: .88rem; margin: .6rem 0; } .wide { overflow-x: auto; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #e3e6ea; text-align: left; vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; } tr.ours td { background: #eef6ee; }
figure { margin: 1rem 0; } figure svg { max-width: 100%; height: auto; } figcaption { font-size: .88rem; color: #4a5059; max-width: 54rem; }
details { margin: .4rem 0; } summary { cursor: pointer; } pre { background: #f5f6f8; padding: .6rem; overflow-x: auto; font-size: .78rem; white-space: pre-wrap; overflow-wrap: anywhere; }
.missing { margin: .6rem 0; overflow-wrap: anywhere; } .missing pre { margin: .3rem 0 0; }
.missing { color: #6b4e00; background: #fff7e0; padding: .4rem .7rem; border-left: 4px solid #e0b400; }
nav a { margin-right: 1rem; }
"""


class Page:
    """Collects parts and gives the document."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._parts: list[str] = []
        self._places: list[tuple[str, str]] = []

    def section(self, title: str) -> None:
        """Begins a part that the top of the page links to."""
        place = f"part{len(self._places) + 1}"
        self._places.append((place, title))
        self._parts.append(f'<h2 id="{place}">{html.escape(title)}</h2>')

    def heading(self, title: str) -> None:
        self._parts.append(f"<h3>{html.escape(title)}</h3>")

    def text(self, text: str) -> None:
        self._parts.append(f"<p>{html.escape(text)}</p>")

    def missing(self, what: str, command: str) -> None:
        """A part for which there is no file."""
        self._parts.append(f'<p class="missing">{html.escape(what)}: not measured yet. <code>{html.escape(command)}</code></p>')

    def warning(self, text: str, more: str = "") -> None:
        """Something that a reader must know before what follows; `more` is what a program said."""
        said = f"<pre>{html.escape(more)}</pre>" if more else ""
        self._parts.append(f'<div class="missing">{html.escape(text)}{said}</div>')

    def bullets(self, texts: Iterable[str]) -> None:
        """A list; nothing when it is empty."""
        items = "".join(f"<li>{html.escape(text)}</li>" for text in texts)
        if items:
            self._parts.append(f"<ul>{items}</ul>")

    def figure(self, svg: str, caption: str) -> None:
        self._parts.append(f'<figure role="img" aria-label="{html.escape(caption)}">{svg}<figcaption>{html.escape(caption)}</figcaption></figure>')

    def table(
        self, head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int] = (), ours: str = "wholegrain", fold: str = ""
    ) -> None:
        """A table; columns of `numbers` are set to the right, rows that begin with `ours` are marked; folded away under `fold`."""
        right = set(numbers)

        def cells(tag: str, values: Sequence[str]) -> str:
            return "".join(f'<{tag}{" class=n" if i in right else ""}>{html.escape(v)}</{tag}>' for i, v in enumerate(values))

        body = "".join(
            f'<tr{" class=ours" if any(v.startswith(ours) for v in row[:3]) else ""}>{cells("td", row)}</tr>\n' for row in rows
        )
        table = f'<div class="wide"><table><thead><tr>{cells("th", head)}</tr></thead><tbody>\n{body}</tbody></table></div>'
        self._parts.append(f"<details><summary>{html.escape(fold)}</summary>{table}</details>" if fold else table)

    def details(self, summary: str, text: str) -> None:
        """Long text that is folded away."""
        self._parts.append(f"<details><summary>{html.escape(summary)}</summary><pre>{html.escape(text)}</pre></details>")

    def document(self) -> str:
        links = " ".join(f'<a href="#{place}">{html.escape(title)}</a>' for place, title in self._places)
        body = "\n".join(self._parts)
        return (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
            f"<title>{html.escape(self.title)}</title><style>{STYLE}</style></head>\n"
            f"<body><h1>{html.escape(self.title)}</h1>\n<nav>{links}</nav>\n{body}\n</body></html>\n"
        )
