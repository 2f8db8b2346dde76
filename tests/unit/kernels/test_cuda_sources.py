"""The CUDA sources compile, on machines with CUDA's compiler and no GPU."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import scatlas

KERNELS = Path(scatlas.__file__).parent / "kernels"
# What templates are made for: the smallest counts, scanpy's float32, and float64 with wide indices.
TYPES = [("uint8", "uint16"), ("float", "int"), ("double", "int64")]
# After the preprocessor, which has put attributes for `__global__` and `__launch_bounds__`.
KERNEL = re.compile(
    r"(?:template\s*<(?P<parameters>[^<>]*)>\s*)?__attribute__\(\(global\)\)\s+void\s+"
    r"(?:__attribute__\(\(launch_bounds[^;{]*?\)\)\)\s*)?(?P<name>\w+)\s*\("
)

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")


def instances(text: str) -> list[str]:
    """Every kernel of a preprocessed source, for each of the types."""
    found = []
    for kernel in KERNEL.finditer(text):
        names = [part.split()[-1] for part in (kernel["parameters"] or "").split(",") if part]
        for value, index in TYPES if names else TYPES[:1]:
            result = "double" if value == "double" else "float"
            types = {"I": index, "Out": result, "O": result, "Count": "int64"}
            types |= {"N": "2", "SLOTS": "32", "EIGHTHS": "4"}  # numbers
            chosen = ", ".join(types.get(name, value) for name in names)
            found.append(f"{kernel['name']}<{chosen}>" if names else kernel["name"])
    return found


@pytest.mark.parametrize("path", sorted(KERNELS.rglob("*.cu")), ids=lambda path: path.stem)
def test_compiles(path, tmp_path):
    source = tmp_path / path.name
    text = (KERNELS / "build/common.cuh").read_text() + path.read_text()
    source.write_text(text)
    expanded = subprocess.run(
        ["nvcc", "-E", "-std=c++17", source], check=True, capture_output=True, text=True
    ).stdout
    own = expanded[expanded.index("typedef signed char int8;") :]
    kernels = instances(own)
    assert len([*KERNEL.finditer(own)]) == own.count("__attribute__((global))") > 0
    table = ", ".join(f"(void*) {kernel}" for kernel in kernels)
    source.write_text(f"{text}\nvoid* all_kernels[] = {{{table}}};\n")
    done = subprocess.run(
        # What is left out, optimization, takes most of the time and finds no error in a source.
        [
            *("nvcc", "-std=c++17", "-arch=compute_75", "-Xcicc", "-O0"),
            *("-ptx", "-o", tmp_path / "out.ptx", source),
        ],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.ptx").read_text().count(".entry") == len(set(kernels))
