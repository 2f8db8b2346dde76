"""Names that are short enough for a picture, a table or a page, and still tell things apart."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

# A word such as CD4 or a number such as 0.5 with the signs that follow it, or signs at the
# beginning; letters and digits of words that are too long.
_WORDS = re.compile(r"(?:\d+\.\d+|[^\W_]+)[\W_]*|[\W_]+")
_PARTS = re.compile(r"(?:[^\W\d_]+|\d+)[\W_]*|[\W_]+")
_LAST_SIGNS = re.compile(r"[\W_]+$")
_GROWTH = 1.25
_LITTLE = 4  # letters of a word such as "the "


def first_names(names: Sequence[str], most: int) -> str:
    """The first names of a list as text, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def short_names(names: Iterable[str], longest: int) -> list[str]:
    """Names of `longest` letters at most: an ellipsis takes the place of what most of them share.
    Only equal names get one text; names that would become one stay longer.
    """
    names = list(names)
    short, width = _cut(list(dict.fromkeys(names)), longest), float(longest)
    while len(set(short.values())) < len(short):
        groups: dict[str, list[str]] = defaultdict(list)
        for name, text in short.items():
            groups[text].append(name)
        for group in groups.values():
            if len(group) > 1:
                short |= _cut(group, int(width))  # what is common within the group
        width *= _GROWTH
    return [short[name] for name in names]


def _cut(names: Sequence[str], longest: int) -> dict[str, str]:
    """Each name by its parts that the fewest other names have."""
    if all(len(name) <= longest for name in names):
        return dict(zip(names, names, strict=True))
    parts = {name: _split_name(name, longest) for name in names}
    n_names = Counter(key for own in parts.values() for key in {*sum(map(tuple, _keys(own)), ())})
    return {
        name: name
        if len(name) <= longest
        else _keep_rare(own, [max(n_names[key] for key in keys) for keys in _keys(own)], longest)
        for name, own in parts.items()
    }


def _split_name(name: str, longest: int) -> list[str]:
    """Words and numbers of a name; those that take more than half of the letters in pieces."""
    parts = []
    words = _WORDS.findall(name)
    for word in chain(*(_PARTS.findall(w) if len(w) > longest // 2 else [w] for w in words)):
        size = max(3, longest // 4) if len(word) > longest // 2 else len(word)
        parts += [word[i : i + size] for i in range(0, len(word), size)]
    return parts


def _keys(parts: list[str]) -> list[tuple[Hashable, ...]]:
    """What makes a part common: others have it at the same place from the left or from the right,
    or behind the same part.
    """
    before = ["", *parts]
    n = len(parts)
    return [((i, part), (i - n, part), (before[i], part)) for i, part in enumerate(parts)]


def _keep_rare(parts: list[str], n_names: list[int], longest: int) -> str:
    """The rarest parts first, then those beside rarer ones, then both ends, while they fit."""

    def turn(i: int) -> tuple[int, int, int]:
        rarer = [j - i for j, n in enumerate(n_names) if n < n_names[i]]
        beside = min((2 * away if away > 0 else 1 - 2 * away for away in rarer), default=0)
        return n_names[i], beside, min(2 * i, 2 * (len(parts) - i) - 1)

    kept: set[int] = set()
    for i in sorted(range(len(parts)), key=turn):
        is_common = 2 * n_names[i] > max(n_names) and 0 < i < len(parts) - 1
        if is_common and len(parts[i]) <= _LITTLE and not {i - 1, i + 1} & kept:
            continue  # "…of…" between two gaps says nothing
        if len(_join_kept(parts, kept | {i})) <= longest:
            kept.add(i)
    return _join_kept(parts, kept)


def _join_kept(parts: list[str], kept: set[int]) -> str:
    text = ""
    for i, part in enumerate(parts):
        if i in kept:
            text += part
        elif not text.endswith("…"):
            text = _LAST_SIGNS.sub("", text) + "…"
    return text


# Tahoe-100M's [('Drug', 0.05, 'uM')]; names that end in a number and a unit, such as Drug_0.5uM.
_TUPLE = re.compile(r"\[\('(.+)', ([\d.eE+-]+), '(\S+)'\)\]")
_ENDING = re.compile(r"(.+?)[\s_@:,-]+(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)[\s_]?(\S+)")
# Units as multiples of uM, and of ug/mL.
_UNITS = {"pm": 1e-6, "nm": 1e-3, "um": 1.0, "µm": 1.0, "μm": 1.0, "mm": 1e3}
_UNITS |= {"ng/ml": 1e-3, "ug/ml": 1.0, "µg/ml": 1.0, "μg/ml": 1.0, "mg/ml": 1e3}


def split_dose(name: str) -> tuple[str, float, str] | None:
    """Compound, dose in uM (or ug/mL), and the dose as written of a condition whose name says them;
    a number without a unit is no dose: it may be one of a guide or a donor.
    """
    parts = _TUPLE.fullmatch(name) or _ENDING.fullmatch(name)
    if not parts or parts[3].lower() not in _UNITS:
        return None
    try:
        dose = float(parts[2]) * _UNITS[parts[3].lower()]
    except ValueError:
        return None
    return parts[1], dose, f"{parts[2]} {parts[3]}"
