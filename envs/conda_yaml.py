"""Writes the conda environments of the rules from the dependencies in pyproject.toml and the locks.

They hold what the scripts import, at the versions of the locks: the package's own dependencies, the
``embed``, ``plot``, ``skmisc`` and ``workflow`` extras without Snakemake (which runs outside), and
the GPU libraries.
Standard library only, so that ``envs/lock.sh`` can run it with any Python.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ENVS = Path(__file__).resolve().parent

# Where conda-forge's name is not that of the Python package. None: Snakemake starts the rules and
# is no part of their environment.
CONDA_NAMES = {
    "cupy-cuda12x": "cupy",
    "cupy-cuda13x": "cupy",
    "dask": "dask-core",
    "igraph": "python-igraph",
    "matplotlib": "matplotlib-base",
    "snakemake": None,
}
# Not on conda-forge, or not under a name known here.
PIP_ONLY = re.compile(r"^(dask-cuda|deflate|rmm-cu\d+)$")

BASE = ["embed", "plot", "skmisc", "workflow"]
# Extras of the package by lock.
EXTRAS = {"cpu": BASE, "gpu-cu12": [*BASE, "gpu-cu12"], "gpu-cu13": [*BASE, "gpu-cu13"]}
HEADER = """\
# Made by envs/lock.sh from pyproject.toml and envs/{lock}.lock.txt; do not edit.
# For `snakemake --software-deployment-method conda`.
channels:
  - conda-forge
  - nodefaults
dependencies:
  - python=3.12
"""


def requirement_names(extras: list[str]) -> list[str]:
    """Names of the package's direct dependencies, with those of ``extras``, sorted."""
    project = tomllib.loads((ENVS.parent / "pyproject.toml").read_text())["project"]
    requirements = list(project["dependencies"])
    for extra in extras:
        requirements += project["optional-dependencies"][extra]
    names = {re.split(r"[^A-Za-z0-9_.-]", requirement)[0].lower() for requirement in requirements}
    return sorted(names - {project["name"]})


def locked_versions(lock: str) -> dict[str, str]:
    """Version of each package in ``envs/{lock}.lock.txt``."""
    text = (ENVS / f"{lock}.lock.txt").read_text()
    return dict(re.findall(r"^([a-z0-9][a-z0-9._-]*)==([^\s;]+)", text, flags=re.MULTILINE))


def environment(lock: str, extras: list[str]) -> str:
    """Text of the conda environment that agrees with ``envs/{lock}.lock.txt``."""
    versions = locked_versions(lock)
    conda, pip = [], []
    for name in requirement_names(extras):
        if PIP_ONLY.match(name):
            pip.append(f"      - {name}=={versions[name]}\n")
        elif (conda_name := CONDA_NAMES.get(name, name)) is not None:
            conda.append(f"  - {conda_name}={versions[name]}\n")
    if match := re.search(r"cu(\d+)$", lock):
        conda.append(f"  - cuda-version={match[1]}\n")
    text = HEADER.format(lock=lock) + "".join(sorted(conda))
    if pip:
        text += "  - pip\n  - pip:\n" + "".join(pip)
    return text


def main() -> None:
    """Write every environment."""
    for lock, extras in EXTRAS.items():
        (ENVS / f"{lock}.yaml").write_text(environment(lock, extras))


if __name__ == "__main__":
    main()
