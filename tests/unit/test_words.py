"""Words and names that this repository does not use, because readers stumble over them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
AREAS = ("src", "scripts", "workflow", "config", "docs", "profiles", "envs", "bench", "tests", ".")
# Results of benchmarks are records, locks and pictures are data, and this file quotes the phrases.
SKIPPED = re.compile(r"bench/results/|docs/images/|envs/.*\.lock\.txt|tests/unit/test_words\.py")
TEXT = {".md", ".py", ".cu", ".cuh", ".c", ".smk", ".yaml", ".toml", ".rst", ".html"}
TEXT |= {".sh", ""}

_BE = "(is|are|was|were|be|been|being|gets?)"
_NUMBER = r"(\d[\w.,]*|one|two|three|four|five|six|seven|eight|ten|twice|once|some)"
_UNIT = r"(bytes?|[kmgt]b|ns|nanoseconds?|values|counts)"
_THING = (
    "(stored value|value|count|cell|gene|row|block|chunk|thread|worker|second|job|core|gpu|plate"
    "|process|component)"
)
_VERB = (
    "(is|are|as|of|in|with|for|and|or|has|gives|to|from|by|at|on|into|than|not|but|takes|that"
    "|needs?|share|over|which|beyond)"
)


class Phrase(NamedTuple):
    """A phrase to avoid.

    ``key`` is a word of each hit: a file without it is not searched. ``pattern`` matches lowercase
    text; its spaces match line breaks and the mark of a comment's next line, too.
    """

    key: str
    pattern: str
    advice: str


PHRASES = [
    Phrase("worked", r"\bworked (out|on)\b", "computed, processed"),
    Phrase("own", r"\bof (its|their) (very )?own\b", "'its own X', or leave it out"),
    Phrase("work", r"\bin work\b", "in flight, being processed"),
    Phrase("many", r"\bso many\b", "the number, or 'as many as'"),
    Phrase("had", rf"\b({_BE} had|had of|not to be had)\b", "available"),
    Phrase("said", rf"\b{_BE} said\b", "documented, printed"),
    Phrase("asked", rf"\b{_BE} asked( \w+)? for\b", "requested"),
    Phrase("made", r"\bmade up for\b", "compensated"),
    Phrase("hand", r"\bat hand\b", "available"),
    Phrase("hang", r"\b(hangs? on|hanging on)\b", "depends on, waits for"),
    Phrase("tell", r"\btells? of\b", "reports, names"),
    Phrase("twin", r"\btwins?\b", "counterpart"),
    Phrase("anew", r"\banew\b", "again"),
    Phrase("bear", r"\bbears?\b", "has"),
    Phrase("look", r"\blooked (at|for)\b", "read, checked, searched"),
    Phrase("claim", r"\b(claims?|claimed)\b", "lock, locked"),
    Phrase("home", r"\b(homes|_home|homes?\(|kernels? homes?)\b", "module"),
    Phrase("stand", r"\bstands? (in|at|on|here|there|beside|where|below|above)\b", "is (in, on)"),
    Phrase(
        "a",
        rf"\b({_NUMBER} ((?!{_VERB} )[\w-]+ ){{0,2}}|{_UNIT} )an? {_THING}\b",
        "per: '8 bytes per value'",
    ),
    Phrase(
        "def",
        r"\bdef _?(both|joined|plain|parts|of|it|places|most|late|rest)\b",
        "a name that says what the function does",
    ),
    Phrase(
        "class",
        r"\bclass _?(held|seen|taken|gathered|tally|placed|added|whole|ask)\b",
        "a noun that says what the class holds",
    ),
]
_PATTERNS = [
    re.compile(phrase.pattern.replace(" ", r"(?:\s+(?:(?:#:?|//|\*) +)?)")) for phrase in PHRASES
]


def hits(text: str) -> list[str]:
    """Line number, phrase and advice of each hit in a text."""
    text = text.lower()
    found = []
    for phrase, pattern in zip(PHRASES, _PATTERNS, strict=True):
        if phrase.key not in text:
            continue
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(f"{line}: {' '.join(match[0].split())!r}: write {phrase.advice}")
    return found


def files(area: str) -> list[Path]:
    """Tracked text files of a folder; ``.``: of the root folder alone."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    pathspec = ":(glob)*" if area == "." else area
    command = ["git", "ls-files", "-z", "--", pathspec]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    names = [name for name in listed.split("\0") if name and not SKIPPED.search(name)]
    paths = [ROOT / name for name in names if Path(name).suffix in TEXT]
    return [path for path in paths if path.is_file()]


@pytest.mark.parametrize("area", AREAS)
def test_words_are_plain(area):
    found = [
        f"{path.relative_to(ROOT)}:{hit}"
        for path in files(area)
        for hit in hits(path.read_text("utf-8"))
    ]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    "planted",
    [
        "Blocks are worked on by threads.",
        "# blocks are worked\n# on by threads",
        "It takes 8 bytes a value.",
        "one thread a block",
        "two arrays a gene",
        "300 million values a second",
        "What is asked for is not there.",
        "threads of their own",
        "def _both(x): ...",
        "class _Held: ...",
    ],
)
def test_a_planted_phrase_is_found(planted):
    (hit,) = hits("first line\n" + planted)
    assert hit.startswith("2: '")
    assert ": write " in hit


@pytest.mark.parametrize(
    "plain",
    ["8 bytes per value", "one of a block", "a value a", "the second pass", "a home folder"],
)
def test_plain_words_are_not_found(plain):
    assert hits(plain) == []
