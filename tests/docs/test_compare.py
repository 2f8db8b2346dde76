"""The two designs of docs/after/compare.md: their code, run, finds what was planted."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.docs.test_after import BLOCK, simulates
from tests.helpers.planted import beside_truth, summary

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/after/compare.md").read_text()
ACTS = ("all lines", "all lines, by dose", "one line", "nowhere")


@pytest.fixture(scope="module")
def names() -> dict[str, object]:
    """What the code of the page makes."""
    names: dict[str, object] = {}
    for language, text in BLOCK.findall(PAGE):
        if language == "python" and simulates(text):
            exec(compile(text, "compare.md", "exec"), names)
    return names


@pytest.fixture(scope="module")
def drugs(names) -> pd.DataFrame:
    return beside_truth(names["effects"], names["truth"], 1.0)


@pytest.fixture(scope="module")
def doses(names) -> pd.DataFrame:
    return beside_truth(names["by_dose"], names["truth"], 1.0)


@pytest.fixture(scope="module")
def disease(names) -> pd.DataFrame:
    planted = names["planted"].rename_axis("gene").reset_index()
    truth = planted.melt("gene", var_name="cell_type", value_name="log2_fold_change")
    truth = truth[truth["log2_fold_change"] != 0].assign(disease="diseased")
    return beside_truth(names["of_disease"], truth, 1.5)


def rows(table: pd.DataFrame) -> list[str]:
    return ["| " + " | ".join(map(str, row)) + " |" for row in table.to_numpy().tolist()]


@pytest.mark.parametrize("study", ["drugs", "disease"])
def test_strong_effects_are_found_and_few_others(study, request):
    table = request.getfixturevalue(study)
    strong = table[table["strong"]]
    assert len(strong) >= 40
    missed = strong[~strong["called"]]
    assert missed.empty, missed.to_string()
    assert (table.loc[table["called"], "planted"] == 0).mean() < 0.05
    # The sizes are right, not only the calls.
    slope = (strong["log2_fold_change"] * strong["planted"]).sum() / (strong["planted"] ** 2).sum()
    assert slope == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("study", ["drugs", "doses", "disease"])
def test_what_has_no_effect_has_no_more_discoveries_than_the_rate_allows(study, request):
    table = request.getfixturevalue(study)
    comparisons = table.groupby([*table.columns[:2]])
    null = table[comparisons["planted"].transform(lambda own: (own == 0).all())]
    any_called = null.groupby([*table.columns[:2]])["called"].any()
    # By chance 5% of the comparisons have a discovery; 15% allow for 16 comparisons.
    assert any_called.sum() <= 0.15 * any_called.size
    assert (null["p_value"] < 0.05).mean() == pytest.approx(0.05, abs=0.01)


def test_tables_of_the_page(drugs, doses, disease):
    by_drug = summary(drugs, "drug").reset_index()
    numbers = by_drug["drug"].str.removeprefix("drug_").astype(int)
    by_drug.insert(1, "acts", [ACTS[(number - 1) % 4] for number in numbers])
    # Drugs that grow with the dose: up counts as down.
    grows = doses["drugname_drugconc"].str.contains("drug_[26]'") & (doses["planted"] != 0)
    table, sign = doses[grows], np.sign(doses.loc[grows, "planted"])
    dose = table["drugname_drugconc"].str.extract(r"([\d.]+), 'uM'")[0] + " uM"
    table = table.assign(planted=sign * table["planted"], found=sign * table["log2_fold_change"])
    by_dose = table.groupby(dose)[["planted", "found", "called"]].mean()
    np.testing.assert_allclose(by_dose["found"], by_dose["planted"], atol=0.1)
    assert by_dose["called"].is_monotonic_increasing
    by_dose["called"] = [f"{share:.0%}" for share in by_dose["called"]]
    by_type = summary(disease, "cell_type").reset_index()
    lines = [
        f"| {' | '.join(map(str, row))} |"
        for table in (by_drug, by_dose.round(2).reset_index(), by_type)
        for row in table.to_numpy().tolist()
    ]
    assert [line for line in lines if line not in PAGE] == []


def test_numbers_of_tests_over_cells_are_those_of_the_benchmark():
    (file,) = re.findall(r"bench/results/effects-power-[\w-]+\.txt", PAGE)
    pattern = r"(voom|cells, [\w-]+) .* (\d+) +(\d+) +\d+ +\d+$"
    rows = re.findall(pattern, (ROOT / file).read_text(), re.MULTILINE)
    assert len(rows) == 9
    for _, genes, called in rows:
        assert f"{int(called):,} of {int(genes):,}" in PAGE
