"""Effects on simulated counts with known truth: power and false discoveries, beside PyDESeq2's.

Designs: the drug plates of the demo by drug (four wells of each in four plates) and by drug and
dose (one well as a rule), and a tissue of 12 donors. ``voom``, ``trend`` and ``PyDESeq2`` get the
same pseudobulks and genes. Printed per design and method, over all seeds: the average precision,
which is the area under precision-recall, of all genes of all comparisons by p-value, and of the
better counted half of them; at a false discovery rate of 0.05 per comparison, the share of wrong
discoveries and of effects found; the share of genes without an effect with p < 0.001.

Below it what has no effect (drug_4; the last type of the tissue), with scanpy's t-test and Wilcoxon
over cells of the same comparison: false discoveries. PyDESeq2 is no dependency::

    pip install pydeseq2
    python bench/effects_power.py --out bench/results/effects-power-DATE.txt
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

import anndata as ad
import numpy as np
import pandas as pd
import scanpy as sc
from joblib import Parallel, delayed
from runner import head, parser, publish
from sklearn.metrics import average_precision_score

import scatlas as sa
from scatlas.datasets import planted_effects, simulate_plates, simulate_tissue
from scatlas.matrix.effects_moderation import false_discovery_rates

KEYS = ["group", "condition", "gene"]
FDR = 0.05


class Study(NamedTuple):
    """Cells with the columns group, condition, control, replicate and block, and the truth."""

    cells: ad.AnnData
    control: str
    truth: pd.DataFrame
    null: tuple[str, str]  # pattern of groups and of conditions without effects

    def is_null(self, table: pd.DataFrame) -> pd.Series:
        """Rows of comparisons of which no gene changes."""
        group, condition = self.null
        return table["group"].str.contains(group) & table["condition"].str.contains(condition)


def drug_plates(seed: int, condition: str) -> Study:
    plates = simulate_plates(seed=seed)
    cells = ad.concat([plate[plate.obs["pass_filter"] == "full"] for plate in plates.values()])
    # As config/demo.yaml.
    cells = cells[(cells.obs["gene_count"] >= 250) & (cells.obs["pcnt_mito"] <= 0.25)].copy()
    names = {"cell_line": "group", condition: "condition", "sample": "replicate", "plate": "block"}
    cells.obs = cells.obs[[*names]].rename(columns=names).astype(str)
    truth = planted_effects(seed=seed).rename(columns=names)[KEYS].drop_duplicates()
    control = next(name for name in cells.obs["condition"] if "DMSO_TF" in name)
    return Study(cells, control, truth, ("", r"drug_4\b"))


def tissue(seed: int) -> Study:
    cells = simulate_tissue(seed=seed)
    changes = cells.varm["log2_fold_change"]
    gene, group = np.nonzero(changes.to_numpy())
    truth = {"group": changes.columns[group], "condition": "diseased", "gene": changes.index[gene]}
    names = {"cell_type": "group", "disease": "condition", "donor": "replicate"}
    cells.obs = cells.obs.rename(columns=names).astype(str)
    return Study(cells, "healthy", pd.DataFrame(truth), (str(changes.columns[-1]), ""))


DESIGNS = {
    "plates, by drug": lambda seed: drug_plates(seed, "drug"),
    "plates, by drug and dose": lambda seed: drug_plates(seed, "drugname_drugconc"),
    "tissue of 12 donors": tissue,
}


def of_scatlas(study: Study, method: str) -> pd.DataFrame:
    block = "block" if "block" in study.cells.obs else None
    effects = sa.tl.effects(
        study.cells, "condition", study.control, within="group", replicate="replicate",
        block=block, method=method,
    )  # fmt: skip
    return sa.get.effects(effects).astype(dict.fromkeys(KEYS, str))


def of_pydeseq2(study: Study, tested: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Wald tests of all conditions of a group in one model, without and with its own filter."""
    from pydeseq2.dds import DeseqDataSet
    from pydeseq2.ds import DeseqStats

    columns = [name for name in study.cells.obs if name != "sample"]
    sums = sa.get.aggregate(study.cells, columns, "sum")
    sums = sums[sums.obs["n_obs_aggregated"] >= 10]
    for group, own in tested.groupby("group"):
        genes = own["gene"].unique()
        samples = sums[sums.obs["group"] == group, genes]
        counts = pd.DataFrame(samples.layers["sum"], samples.obs_names, genes).astype(int)
        design = "~block + condition" if "block" in samples.obs else "~condition"
        # Formulas take no quotes and brackets.
        codes = {name: f"c{i}" for i, name in enumerate(samples.obs["condition"].unique())}
        table = samples.obs[[*columns]].astype(str)
        table["condition"] = table["condition"].map(codes)
        model = DeseqDataSet(counts=counts, metadata=table, design=design, n_cpus=1, quiet=True)
        model.deseq2()
        for condition in own["condition"].unique():
            contrast = ["condition", codes[condition], codes[study.control]]
            stats = DeseqStats(model, contrast=contrast, n_cpus=1, quiet=True)
            stats.summary()
            found = stats.results_df.rename(columns={"pvalue": "p_value", "padj": "fdr"})
            labels = {"group": group, "condition": condition, "gene": found.index}
            yield found[["p_value", "fdr"]].reset_index(drop=True).assign(**labels)


def over_cells(study: Study, tested: pd.DataFrame, method: str) -> Iterator[pd.DataFrame]:
    """scanpy's test of the cells of each comparison without effects, for the same genes."""
    cells = study.cells.copy()
    sc.pp.normalize_total(cells)
    sc.pp.log1p(cells)
    null = tested[study.is_null(tested)]
    for (group, condition), own in null.groupby(["group", "condition"]):
        part = cells[cells.obs["group"] == group, own["gene"].to_numpy()]
        part = part[part.obs["condition"].isin([condition, study.control])]
        if "block" in part.obs:  # with the controls of the same plates
            of_drug = part.obs["condition"] == condition
            part = part[part.obs["block"].isin(part.obs["block"][of_drug])]
        part = part.copy()
        sc.tl.rank_genes_groups(
            part, "condition", groups=[condition], reference=study.control, method=method,
            tie_correct=method == "wilcoxon",
        )  # fmt: skip
        found = sc.get.rank_genes_groups_df(part, condition)
        p = found["pvals"].fillna(1).to_numpy()
        labels = {"group": group, "condition": condition, "gene": found["names"].to_numpy()}
        yield pd.DataFrame({"p_value": p, "fdr": false_discovery_rates(p), **labels})


def measured(table: pd.DataFrame, study: Study, seed: int) -> dict[str, float]:
    """Figures of a method; a gene without p-value counts as undecided, p = 1."""
    is_true, called = table["is_true"], table["fdr"] < FDR
    score = -table["p_value"].fillna(1)
    counted = table["mean_expression"] >= table["mean_expression"].median()
    figures: dict[str, float] = {"seed": seed}
    if is_true.any():
        figures |= {
            "precision": average_precision_score(is_true, score),
            "of_counted": average_precision_score(is_true[counted], score[counted]),
            "wrong": (called & ~is_true).sum() / max(called.sum(), 1),
            "found": (called & is_true).sum() / is_true.sum(),
        }
    null = table[study.is_null(table)].assign(called=called)
    comparisons = null.groupby(["group", "condition"])["called"].any()
    return figures | {
        "p<0.001": (table.loc[~is_true, "p_value"].dropna() < 0.001).mean(),
        "null_genes": len(null),
        "null_called": null["called"].sum(),
        "null_comparisons": len(comparisons),
        "null_with_any": comparisons.sum(),
    }


def compared(design: str, seed: int) -> list[dict[str, Any]]:
    """Figures of all methods on one simulation."""
    warnings.simplefilter("ignore")  # of PyDESeq2, about genes that do not converge
    study = DESIGNS[design](seed)
    voom = of_scatlas(study, "voom")
    tables = {"voom": voom, "trend": of_scatlas(study, "trend")}
    tables["PyDESeq2"] = pd.concat(of_pydeseq2(study, voom))
    for test in ("t-test", "wilcoxon"):
        tables[f"cells, {test}"] = pd.concat(over_cells(study, voom, test))
    truth = study.truth.assign(is_true=True)
    genes = voom[[*KEYS, "mean_expression"]].merge(truth, on=KEYS, how="left")
    genes["is_true"] = genes["is_true"].notna()
    rows = []
    for name, table in tables.items():
        table = genes.merge(table[[*KEYS, "p_value", "fdr"]], on=KEYS)
        rows.append({"design": design, "method": name} | measured(table, study, seed))
    return rows


def main() -> None:
    options = parser(__doc__, seeds=5, jobs=1)
    options.add_argument("--designs", nargs="+", default=[*DESIGNS], choices=DESIGNS)
    args = options.parse_args()
    tasks = [(design, seed) for design in args.designs for seed in range(args.seeds)]
    rows = chain.from_iterable(Parallel(args.jobs)(delayed(compared)(*task) for task in tasks))
    table = pd.DataFrame(rows)
    of_methods = table.groupby(["design", "method"], sort=False)
    means = of_methods[["precision", "of_counted", "wrong", "found", "p<0.001"]].mean()
    sums = of_methods[["null_genes", "null_called", "null_comparisons", "null_with_any"]].sum()
    each = table.set_index(["design", "seed", "method"])["precision"]
    each = each.unstack()  # noqa: PD010
    lines = [
        *head("pydeseq2", "scanpy", "numpy", "scipy"),
        "# means over the seeds; null_...: sums",
        *means.join(sums).round(4).to_string().splitlines(),
        "",
        "# precision of each seed",
        *each[["voom", "trend", "PyDESeq2"]].round(4).to_string().splitlines(),
    ]
    publish(lines, args.out)


if __name__ == "__main__":
    main()
