"""Plain text of strongly different domains from Debian packages, for `benchmarks/idp.py`.

    apt install wordnet-base bible-kjv dict-jargon python3.11-doc
    python benchmarks/domain_text.py -o DIR

Writes `wordnet.txt` (glosses of nouns), `bible.txt` (King James), `jargon.txt` (the Jargon File), and `unseen.txt`
(Python's manual: a control, on which nothing is trained). What the packages hold is not part of this project.
"""

from __future__ import annotations

import argparse
import gzip
import html
import re
import subprocess
from pathlib import Path


def wordnet(share: Path) -> str:
    """Return a line `word: gloss` for each noun."""
    lines = []
    for line in (share / "wordnet" / "data.noun").read_text().splitlines():
        if not line.startswith("  "):
            data, gloss = line.split(" | ", 1)
            lines.append(f"{data.split()[4].replace('_', ' ')}: {gloss.strip()}")
    return "\n\n".join(lines)


def bible(share: Path) -> str:
    """Return the verses without their numbers, a chapter a paragraph."""
    told = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], capture_output=True, text=True, check=True).stdout
    chapters: dict[str, list[str]] = {}
    for line in told.splitlines():
        if found := re.match(r"(\w+?\d+):\d+ (.+)", line):
            chapters.setdefault(found[1], []).append(found[2].strip())
    return "\n\n".join(" ".join(verses) for verses in chapters.values())


def jargon(share: Path) -> str:
    """Return the entries, each a paragraph."""
    text = gzip.decompress((share / "dictd" / "jargon.dict.dz").read_bytes()).decode("utf-8", errors="replace")
    entries = re.split(r"\n\n(?=\S)", text)[10:]  # the first are about the file
    return "\n\n".join(" ".join(entry.split()) for entry in entries)


def unseen(share: Path) -> str:
    """Return paragraphs of Python's manual."""
    pages = sorted((share / "doc" / "python3.11" / "html" / "library").glob("*.html"))
    paragraphs = [one for page in pages for one in re.findall(r"<p>(.*?)</p>", page.read_text(), flags=re.DOTALL)]
    plain = (" ".join(html.unescape(re.sub(r"<[^>]+>", "", one)).split()) for one in paragraphs)
    return "\n\n".join(one for one in plain if len(one) > 200)


def thinned(text: str, size: int) -> str:
    """Return paragraphs from all over the text, at equal distances, of about `size` characters in all."""
    every = max(1, len(text) // size)
    return "\n\n".join(text.split("\n\n")[::every])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--share", type=Path, default=Path("/usr/share"), help="where packages put their data")
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--size", type=int, default=600_000, help="characters of each, at most about")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for make in (wordnet, bible, jargon, unseen):
        path = args.out / f"{make.__name__}.txt"
        path.write_text(thinned(make(args.share), args.size) + "\n")
        print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
