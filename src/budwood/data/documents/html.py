"""HTML to paragraphs with the standard library's parser: scripts, styles, navigation and buttons are left out."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from budwood.data.documents.document import Layout
from budwood.data.documents.plain import decode
from budwood.data.problems import LocatedError, Origin

_LEFT_OUT = {"script", "style", "noscript", "template", "svg", "nav", "button", "select", "iframe"}
_INLINE = set(
    "a abbr b bdi bdo cite code data del dfn em font i ins kbd mark q s samp small span strike strong sub "
    "sup time tt u var wbr label".split()
)
_LEVELS = {f"h{level}": level for level in range(1, 7)}
_META = re.compile(rb"<meta[^>]+charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)


def read_html(data: bytes, origin: Origin) -> Layout:
    """Read a page in UTF-8 (or UTF-16 with a byte order mark), or in the encoding that its own head names."""
    parser = _Page()
    parser.feed(_decode(data, origin))
    parser.close()
    return parser.finished()


def _decode(data: bytes, origin: Origin) -> str:
    declared = _META.search(data[:2048])
    try:
        return decode(data, origin)
    except LocatedError:
        if declared is None:
            raise
        try:
            return data.decode(declared.group(1).decode())
        except (LookupError, UnicodeDecodeError):
            pass
        raise


class _Page(HTMLParser):
    """Collects the text between tags, a paragraph a block element."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._layout = Layout()
        self._text: list[str] = []
        self._hidden: list[str] = []
        self._level = 0
        self._in_title = False
        self._pre = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "title" and not self._layout.title:
            self._in_title = True
        elif tag in _LEFT_OUT:
            self._end_block()
            self._hidden.append(tag)
        elif tag in _LEVELS:
            self._end_block()
            self._level = _LEVELS[tag]
        elif tag == "br":
            self._text.append("\n")
        elif tag in ("td", "th"):
            self._text.append(", " if "".join(self._text).strip() else "")
        elif tag not in _INLINE:
            self._end_block()
            self._text.append("- " if tag == "li" else "")
            self._pre += tag == "pre"

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        elif tag in self._hidden:
            while self._hidden.pop() != tag:
                pass
        elif tag in ("td", "th") or tag in _INLINE:
            return
        else:
            self._end_block()
            self._pre -= tag == "pre" and self._pre > 0

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self._layout.title += data
        elif not self._hidden:
            self._text.append(data if self._pre else re.sub(r"\s+", " ", data))

    def finished(self) -> Layout:
        self._end_block()
        return self._layout

    def _end_block(self) -> None:
        text = "".join(self._text)
        if not self._pre:
            text = re.sub(r" *\n *", "\n", re.sub(r" {2,}", " ", text))
        if text.strip() not in ("", "-"):
            if self._level:
                self._layout.heading(text, self._level)
            else:
                self._layout.paragraph(text)
        self._text, self._level = [], 0
