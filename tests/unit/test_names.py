"""Short names: no two names become one text, and what tells names apart stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scatlas._util.names import short_names, split_dose
from scatlas.workflow.command_line import say_table

# Long names of a set: parts that they share around what differs, with and without words.
_WORDS = st.sampled_from(["donor", "lane", "LPS", "day", "GSM", "1", "12", "007", "é", "細胞", "…"])
_SIGNS = st.sampled_from([" ", "_", "-", ", ", "", "..."])
_NAMES = st.lists(st.tuples(_WORDS, _SIGNS), max_size=6).map(lambda pairs: "".join(sum(pairs, ())))
_DRUGS = ("no", "LPS", "IFN-beta", "R848", "anti-CD3")
LABELS = [
    f"Peripheral blood mononuclear cells of donor {i % 12 + 1} after {_DRUGS[i // 12]} stimulus, "
    f"collected in the second visit, library kit v3.1, lane {i % 4 + 1}"
    for i in range(60)
]


@given(
    names=st.lists(_NAMES, min_size=1, max_size=30),
    before=st.text("ab-", max_size=60),
    after=st.text("ab_ ", max_size=60),
    longest=st.integers(8, 40),
)
def test_no_two_names_become_one(names: list[str], before: str, after: str, longest: int):
    whole = [f"{before}{name}{after}" for name in names]
    short = short_names(whole, longest)
    assert len(set(short)) == len(set(whole))
    assert dict(zip(whole, short, strict=True)) == dict(zip(whole[::-1], short[::-1], strict=True))
    for name, text in zip(whole, short, strict=True):
        assert len(text) <= max(len(name), longest)
        assert text == name or "…" in text
        parts = iter(text.split("…"))
        assert name.startswith(next(parts)), "the text is the name, with gaps"


@pytest.mark.parametrize("longest", [18, 22, 24, 28, 32, 48])
def test_sixty_labels_of_120_letters_keep_what_differs(longest: int):
    assert min(map(len, LABELS)) > 110
    short = short_names(LABELS, longest)
    assert len(set(short)) == 60
    assert max(map(len, short)) <= longest
    for i, text in enumerate(short):
        assert text.endswith(f"{i % 4 + 1}")
        assert ("LPS" in text) == (12 <= i < 24)


def test_short_names_stay_as_they_are():
    assert short_names(["plate1", "plate2", "plate1"], 24) == ["plate1", "plate2", "plate1"]
    assert short_names(["B cells", "CD4 T cells of the blood", "CD8 T cells of the blood"], 12) == [
        *("B cells", "CD4 T cells…", "CD8 T cells…")
    ]
    assert short_names(["abcdefghijkl"], 9) == ["abc…jkl"]
    assert short_names([], 9) == []


def test_words_and_numbers_stay_whole():
    parts = [(f"A{i}", f"{dose:g} uM") for i in range(5) for dose in (0.05, 0.5, 5, 50)]
    names = [f"(4-fluorophenyl)methyl hydrochloride of lot {lot}, {dose}" for lot, dose in parts]
    for (lot, dose), text in zip(parts, short_names(names, 24), strict=True):
        assert lot in text
        assert dose in text


def test_tables_of_the_terminal_keep_rows_apart(capsys: pytest.CaptureFixture[str]):
    say_table([["plate", "cells"], *([name, f"{i}"] for i, name in enumerate(LABELS))])
    head, *rows = capsys.readouterr().out.splitlines()
    assert len({row.rpartition("  ")[0] for row in rows}) == 60
    assert max(map(len, [head, *rows])) <= 56


@pytest.mark.parametrize(
    ("name", "dose"),
    [
        ("[('Drug (x)', 0.05, 'uM')]", ("Drug (x)", 0.05, "0.05 uM")),
        ("Trametinib (DMSO_TF solvate)_500nM", ("Trametinib (DMSO_TF solvate)", 0.5, "500 nM")),
        ("drug-2 1e-1 µM", ("drug-2", 0.1, "1e-1 µM")),
        ("guide_5", None),
        ("donor 3 b", None),
        ("[('x', 1.2.3, 'uM')]", None),
        ("", None),
    ],
)
def test_a_dose_has_a_unit(name: str, dose: tuple[str, float, str] | None) -> None:
    assert split_dose(name) == dose
