#!/usr/bin/env bash
# matplotlib 3.11.2: a figure in constrained layout with slanted tick labels has other axes after
# each savefig. Saved again without a change, it gives other bytes: the axes shrink at each draw. Who wants
# equal bytes has to run the layout once and switch it off (set_layout_engine("none")).
# Seen: widths that fall from save to save, and three different digests.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check matplotlib==3.11.2 2>/dev/null
"$folder/venv/bin/python" - <<'PY'
import hashlib
import io

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

figure = Figure(figsize=(6, 3), layout="constrained")
FigureCanvasAgg(figure)
bars, picture = figure.subplots(1, 2)
bars.barh(["a long name of a row", "b"], [1, 2])
picture.imshow([[1, 2], [3, 4]], aspect="auto")
picture.set_yticks([])
slanted = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
picture.set_xticks([0, 1], ["too few genes", "other"], **slanted)
figure.legend(handles=[*bars.patches], labels=["x", "y"], loc="outside upper left", ncols=2)
digests, widths = [], []
for _ in range(3):
    out = io.BytesIO()
    figure.savefig(out, metadata={"Software": None})
    digests.append(hashlib.sha256(out.getvalue()).hexdigest()[:8])
    widths.append(bars.get_position().width)
print("widths", widths, "digests", digests)
assert len(set(digests)) == 3 and widths == sorted(widths, reverse=True)
PY
