"""Markdown to paragraphs: the marks go, the words stay. Code blocks are kept as they are, for they may hold facts."""

from __future__ import annotations

import re

from budwood.data.documents.document import Layout
from budwood.data.documents.plain import blocks, decode
from budwood.data.problems import Origin

_FRONT = re.compile(r"\A---\n(.*?)\n(?:---|\.\.\.)(?:\n|\Z)", re.DOTALL)
_FRONT_TITLE = re.compile(r"^title:\s*[\"']?(.+?)[\"']?\s*$", re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_FENCE = re.compile(r"^ {0,3}(```+|~~~+)[^\n]*\n(.*?)(?:^ {0,3}\1[`~]*[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)
_ATX = re.compile(r"^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$")
_UNDERLINED = re.compile(r"^(?P<text>[^\n]+)\n {0,3}(?P<mark>=+|-+)[ \t]*$", re.MULTILINE)
_RULE = re.compile(r"^\s*(?:[-*_]\s*){3,}$")
_REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]:\s+\S+.*$")
_TABLE_RULE = re.compile(r"^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$")
_INLINE = (
    (re.compile(r"!\[([^\]]*)\]\([^)]*\)"), r"\1"),
    (re.compile(r"\[([^\]]+)\]\([^)]*\)"), r"\1"),
    (re.compile(r"\[([^\]]+)\]\[[^\]]*\]"), r"\1"),
    (re.compile(r"<(https?://[^>\s]+)>"), r"\1"),
    (re.compile(r"</?[a-zA-Z][^>\n]*>"), ""),
    (re.compile(r"(?<!\w)(\*\*|__)(?=\S)(.+?)(?<=\S)\1(?!\w)"), r"\2"),
    (re.compile(r"(?<![\w*])\*(?=[^\s*])(.+?)(?<=[^\s*])\*(?![\w*])"), r"\1"),
    (re.compile(r"(?<![\w_])_(?=[^\s_])(.+?)(?<=[^\s_])_(?![\w_])"), r"\1"),
    (re.compile(r"~~(?=\S)(.+?)(?<=\S)~~"), r"\1"),
    (re.compile(r"\\([\\`*_{}\[\]()#+\-.!|>~])"), r"\1"),
)
_CODE = re.compile(r"(`+)(.+?)\1", re.DOTALL)


def read_markdown(data: bytes, origin: Origin) -> Layout:
    """Read Markdown (CommonMark and tables) with `#` and underlined headings; front matter gives the title."""
    text, layout = _COMMENT.sub("", decode(data, origin)), Layout()
    front = _FRONT.match(text)
    if front:
        title = _FRONT_TITLE.search(front.group(1))
        layout.title, text = title.group(1) if title else "", text[front.end() :]
    end = 0
    for fence in _FENCE.finditer(text):
        _prose(text[end : fence.start()], layout)
        layout.paragraph(fence.group(2).strip("\n"))
        end = fence.end()
    _prose(text[end:], layout)
    return layout


def _prose(text: str, layout: Layout) -> None:
    """Add what stands outside of code blocks."""
    text = _UNDERLINED.sub(_hashed, text)
    lines: list[str] = []
    for line in [*text.split("\n"), "# "]:
        heading = _ATX.match(line) or line == "# "
        if not heading:
            lines.append(_line(line))
            continue
        for block in blocks("\n".join(lines)):
            layout.paragraph(_inline(block))
        lines = []
        if isinstance(heading, re.Match):
            layout.heading(_inline(heading.group(2)), len(heading.group(1)))


def _hashed(match: re.Match[str]) -> str:
    """Write an underlined heading with `#`; a line above a row of dashes that is a list or a table is left alone."""
    if match["text"].lstrip().startswith(("-", "*", "|", ">", "#")):
        return match[0]
    return f"\n{'#' if match['mark'].startswith('=') else '##'} {match['text'].strip()}\n"


def _line(line: str) -> str:
    """Strip the marks of one line that say what kind of line it is."""
    if _RULE.match(line) or _TABLE_RULE.match(line) or _REFERENCE.match(line):
        return ""
    line = re.sub(r"^ {0,3}(?:> ?)+", "", line)
    line = re.sub(r"^(\s*[-*+]\s+)\[[ xX]\]\s+", r"\1", line)
    line = re.sub(r"^\s*[*+](\s+)", r"-\1", line)
    if line.lstrip().startswith("|"):
        return ", ".join(cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))) + "\n"
    return line


def _inline(text: str) -> str:
    """Strip the marks inside a paragraph; what stands in backticks keeps its own."""
    parts, end = [], 0
    for code in _CODE.finditer(text):
        parts += [_unmarked(text[end : code.start()]), code.group(2).strip()]
        end = code.end()
    return "".join([*parts, _unmarked(text[end:])])


def _unmarked(text: str) -> str:
    for pattern, kept in _INLINE:
        text = pattern.sub(kept, text)
    return text
