"""Effects by PyDESeq2, one contrast after the other: ``python pydeseq2_effects.py DATA.npz``.

DATA has ``counts [n_samples, n_genes]`` and ``condition``; the p-values are written beside it. The
last line that it prints is JSON: seconds of processors, without imports.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version

import numpy as np
import pandas as pd
from pydeseq2.dds import DeseqDataSet
from pydeseq2.default_inference import DefaultInference
from pydeseq2.ds import DeseqStats


def main() -> None:
    data = np.load(sys.argv[1])
    condition = data["condition"]
    samples = pd.DataFrame({"condition": condition}, index=[f"s{i}" for i in range(len(condition))])
    counts = pd.DataFrame(data["counts"], index=samples.index)
    names = [name for name in dict.fromkeys(condition) if name != "ctrl"]
    start, inference = time.process_time(), DefaultInference(n_cpus=1)
    dds = DeseqDataSet(
        counts=counts, metadata=samples, design="~condition", inference=inference, quiet=True
    )
    dds.deseq2()
    p = []
    for name in names:
        contrast = ["condition", name, "ctrl"]
        stats = DeseqStats(
            dds, contrast=contrast, inference=inference, independent_filter=False, quiet=True
        )
        stats.run_wald_test()
        p.append(np.asarray(stats.p_values))
    seconds = time.process_time() - start
    np.save(sys.argv[1] + ".p.npy", np.stack(p))
    print(json.dumps({"seconds": seconds, "version": version("pydeseq2")}))


if __name__ == "__main__":
    main()
