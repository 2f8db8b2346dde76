#!/usr/bin/env bash
# harmonypy 2.1.0: random_state goes to C++ as a signed integer of 32 bits. Seeds from 2^31 to 2^32 - 1,
# which NumPy, scikit-learn and harmonypy 0.0.10 take, end in a TypeError that lists all 19 arguments
# with "random_state: int" and says "int". -1, which NumPy refuses, is taken.
# Seen: "2147483647 runs, 2147483648 TypeError, 4294967295 TypeError, -1 runs".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check harmonypy==2.1.0 numpy pandas 2>/dev/null
"$folder/venv/bin/python" - <<'PY'
import harmonypy
import numpy as np
import pandas as pd

rng = np.random.default_rng(0)
components = rng.normal(size=(300, 10))
cells = pd.DataFrame({"batch": np.where(np.arange(300) % 2, "u", "v")})
seen = []
for seed in (2**31 - 1, 2**31, 2**32 - 1, -1):
    try:
        harmonypy.run_harmony(components, cells, "batch", random_state=seed, verbose=False)
        seen.append(f"{seed} runs")
    except TypeError as error:
        assert "random_state: int" in str(error)
        seen.append(f"{seed} TypeError")
np.random.RandomState(2**32 - 1)
print(", ".join(seen))
assert seen == ["2147483647 runs", "2147483648 TypeError", "4294967295 TypeError", "-1 runs"]
PY
