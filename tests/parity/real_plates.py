"""The real plates, as several parity tests take them."""

from __future__ import annotations

from pathlib import Path

import anndata as ad

import scatlas as sa

PLATES = [f"mix_plate{i}" for i in range(1, 6)]
TARGET_SUM = 1e4


def read_normalized(folder: Path) -> dict[str, ad.AnnData]:
    """Cells that passed QC of each plate, with logarithms of counts of one total."""
    plates = {}
    for name in PLATES:
        plate = ad.read_h5ad(folder / f"{name}.h5ad")
        plate = plate[plate.obs["pass_filter"] == "full"].copy()
        plate.obs["cell_line"] = plate.obs["cell_line"].astype(str)
        sa.pp.normalize_total(plate, target_sum=TARGET_SUM)
        sa.pp.log1p(plate)
        plates[name] = plate
    return plates
