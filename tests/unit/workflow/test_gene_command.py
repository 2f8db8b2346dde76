"""``scatlas gene --add`` changes a config where a gene is added, and nothing else in it."""

from __future__ import annotations

import pytest
import yaml

from scatlas.errors import ConfigError
from scatlas.workflow.command_line.gene import add_genes
from scatlas.workflow.config.loading import load

NEW = ["CD3D", "NO", "MS4A1"]
LISTED = "[CD3D, 'NO', MS4A1]"
# Config before, and after.
FORMS = {
    "": f"\nexplore:\n  genes: {LISTED}\n",
    "seed: 1\n# end": f"seed: 1\n# end\n\nexplore:\n  genes: {LISTED}\n",
    "explore:  # all\n  # points: 3\nseed: 1\n": (
        f"explore:  # all\n  genes: {LISTED}\n  # points: 3\nseed: 1\n"
    ),
    "explore:\n    # a\n    points: 5  # b\n\n# c\nseed: 1\n": (
        f"explore:\n    # a\n    genes: {LISTED}\n    points: 5  # b\n\n# c\nseed: 1\n"
    ),
    "explore: {points: 5}  # a\n": f"explore: {{genes: {LISTED}, points: 5}}  # a\n",
    "explore: {genes: [A, CD3D,]} # a\n": "explore: {genes: ['NO', MS4A1, A, CD3D,]} # a\n",
    "explore:\n  genes:\n  - A  # a\n  points: 5\n": (
        "explore:\n  genes:\n  - CD3D\n  - 'NO'\n  - MS4A1\n  - A  # a\n  points: 5\n"
    ),
    "explore:  # a\r\n  genes:\r\n    - A": (
        "explore:  # a\r\n  genes:\r\n    - CD3D\r\n    - 'NO'\r\n    - MS4A1\r\n    - A"
    ),
}


@pytest.mark.parametrize("before", FORMS)
def test_a_gene_is_added_and_all_other_text_stays(tmp_path, before):
    config = tmp_path / "my.yaml"
    config.write_bytes(before.encode())
    assert "has CD3D, NO, MS4A1 now" in (said := add_genes(config, NEW)) or "has NO, MS4A1" in said
    assert config.read_bytes().decode() == FORMS[before]
    assert set(NEW) <= set(load(config).explore.genes)
    assert add_genes(config, NEW).endswith("has CD3D, NO, MS4A1 already")
    assert config.read_bytes().decode() == FORMS[before]


@pytest.mark.parametrize(
    "text",
    [
        *("explore: null\n", "{seed: 1}\n", "explore: {}\n"),
        *("explore: {genes: []}\n", "explore:\n  genes: 'A'\n"),
    ],
)
def test_where_that_is_not_safe_a_sentence_says_what_to_write(tmp_path, text):
    config = tmp_path / "my.yaml"
    config.write_text(text)
    with pytest.raises(ConfigError) as error:
        add_genes(config, NEW)
    assert config.read_text() == text
    written = yaml.safe_load(str(error.value).partition("write '")[2].rpartition("' below")[0])
    assert written["genes"][:3] == NEW
