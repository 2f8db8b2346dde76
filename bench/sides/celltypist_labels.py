"""CellTypist's side of bench/annotate.py, for a Python that has it (1.7.1, with scikit-learn 1.7).

    python bench/sides/celltypist_labels.py TRAINING.h5ad QUERY.h5ad OUT.npz MODEL.pkl

Trains with the defaults on ``obs['label']`` of log-normalised values, unless the model is there,
and labels the query. Writes the labels, probabilities and CPU seconds of both calls.
"""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path

import anndata as ad
import celltypist
import numpy as np

warnings.filterwarnings("ignore")


def main() -> None:
    training, query, out, file = map(Path, sys.argv[1:])
    celltypist.logger.set_level(50)
    trained = 0.0
    if not file.is_file():
        cells = ad.read_h5ad(training)
        before = time.process_time()
        model = celltypist.train(cells, "label", n_jobs=2)
        trained = time.process_time() - before
        model.write(str(file))
    model = celltypist.models.Model.load(str(file))
    cells = ad.read_h5ad(query)
    before, clock = time.process_time(), time.perf_counter()
    found = celltypist.annotate(cells, model)
    seconds, wall = time.process_time() - before, time.perf_counter() - clock
    np.savez(
        out,
        labels=found.predicted_labels["predicted_labels"].to_numpy("U"),
        probability=found.probability_matrix.to_numpy().max(axis=1),
        trained=trained,
        seconds=seconds,
        wall=wall,
    )


if __name__ == "__main__":
    main()
