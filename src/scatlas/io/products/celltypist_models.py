"""CellTypist models (``.pkl``) as annotators, without celltypist or scikit-learn.

A pickle can run any program when it is read. This one is read once, in another process, by an
unpickler that makes NumPy arrays and lifeless stand-ins for scikit-learn's classes, and no other.
"""

from __future__ import annotations

import hashlib
import pickle
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from scatlas.errors import InputError
from scatlas.io.files.atomic import atomic_path
from scatlas.io.products.annotators import Annotator, read_annotator, write_annotator

_ARRAYS = ("numpy.core.multiarray", "numpy._core.multiarray")
_NUMBERS = ("numpy.core.numeric", "numpy._core.numeric")
_ALLOWED = {("numpy", "ndarray"), ("numpy", "dtype")}
_ALLOWED |= {(module, name) for module in _ARRAYS for name in ("_reconstruct", "scalar")}
_ALLOWED |= {(module, "_frombuffer") for module in _NUMBERS}
# Packages whose objects are read as their attributes alone.
_STAND_INS = ("sklearn", "celltypist", "_loss")
_REFUSED = 3
# Seconds and bytes of address space of the process: models are read in one second.
_SECONDS, _BYTES = 60, 2**34


class _Attributes:
    """Stand-in for an object: it has its attributes and runs nothing."""

    def __new__(cls, *_args: Any, **_options: Any) -> _Attributes:
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state if isinstance(state, dict) else {})


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ALLOWED:
            return super().find_class(module, name)
        if module.partition(".")[0] in _STAND_INS:
            return type(name, (_Attributes,), {})
        raise InputError(f"it holds {module}.{name}, which no CellTypist model needs")


def convert_celltypist(model: Path, out: Path) -> None:
    """Write a CellTypist model as an annotator (h5ad).

    Its bound is CellTypist's own, a probability of 0.5: the file has no cells to calibrate it with.

    Raises
    ------
    InputError
        The file is no CellTypist model, or is damaged.
    """
    if not model.is_file():
        raise InputError(f"{model}: there is no such model: name the file of a CellTypist model")
    with atomic_path(out) as partial:
        command = [sys.executable, "-m", __name__, str(model), str(partial)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            reason = ended.stderr.strip() if ended.returncode == _REFUSED else "reading it failed"
            raise InputError(
                f"{model} is no CellTypist model: {reason}: give the .pkl of celltypist, or an "
                "h5ad of train_annotator"
            )


def read_model(path: Path) -> Annotator:
    """An annotator from its file, or from the CellTypist model (``.pkl``) at the path."""
    if path.suffix != ".pkl":
        return read_annotator(path)
    with TemporaryDirectory() as folder:
        converted = Path(folder) / "model.h5ad"
        convert_celltypist(path, converted)
        return read_annotator(converted)


def _read(path: Path) -> Annotator:
    raw = path.read_bytes()
    try:
        with path.open("rb") as file:
            found = _Unpickler(file).load()
    except InputError:
        raise
    # A damaged pickle ends in any class of error.
    except Exception as error:
        raise InputError(f"it cannot be unpickled ({type(error).__name__})") from error
    if not isinstance(found, dict) or not {"Model", "Scaler_"} <= found.keys():
        raise InputError("it has no entries 'Model' and 'Scaler_'")
    classifier, scaler = (getattr(found[key], "__dict__", {}) for key in ("Model", "Scaler_"))
    needed = {"classes_", "coef_", "intercept_", "features"}
    if missing := sorted((needed - classifier.keys()) | ({"scale_"} - scaler.keys())):
        raise InputError(f"its classifier has no {missing[0]}")
    coef = np.asarray(classifier["coef_"], np.float64)
    intercept = np.asarray(classifier["intercept_"], np.float64)
    if len(coef) == 1:  # two types: the score of the first is the negative one
        coef, intercept = np.vstack([-coef, coef]), np.append(-intercept, intercept)
    genes = np.asarray(classifier["features"]).astype(str)
    labels = np.asarray(classifier["classes_"]).astype(str)
    scale = np.asarray(scaler["scale_"], np.float64)
    # without with_mean the scaler may have a mean, which it does not subtract
    centred = scaler.get("with_mean", True) and scaler.get("mean_") is not None
    mean = np.asarray(scaler["mean_"], np.float64) if centred else np.zeros(genes.size)
    shapes = (coef.shape, intercept.shape, mean.shape, scale.shape)
    shape = (labels.size, genes.size)
    if shapes != (shape, shape[:1], shape[1:], shape[1:]):
        raise InputError(f"its arrays are not of {labels.size} types and {genes.size} genes")
    return Annotator(
        labels,
        genes,
        coef,
        intercept,
        mean,
        scale,
        link="sigmoid",
        record={"celltypist": path.name, "sha256": hashlib.sha256(raw).hexdigest()},
    )


def _main(model: str, out: str) -> None:
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))
    try:
        write_annotator(Path(out), _read(Path(model)))
    except InputError as error:
        sys.stderr.write(str(error))
        sys.exit(_REFUSED)


if __name__ == "__main__":
    _main(*sys.argv[1:])
