"""Checks that hold for every function and every X.

A :class:`Function` describes the call of a public function and its expected result. :func:`judge`
calls it with the same values in two forms and checks that

- the result equals the reference within the tolerance, or both refuse;
- every form gives the same bits;
- an error is a :class:`scatlas.errors.ScatlasError` of one sentence, not from another library;
- the function changes neither the buffers of X nor other parts of the AnnData than its results;
- results that should be lazy for a lazy X are lazy.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from anndata import AnnData, ImplicitModificationWarning
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.sparse import SparseEfficiencyWarning

from scatlas.errors import ScatlasError
from tests.adversarial.matrices import (
    CANONICAL,
    REALS,
    TYPICAL,
    Form,
    Values,
    buffers,
    forms,
    values,
)

Results = Mapping[str, Any]
# Examples are small; the first call of a kernel compiles it.
ALL_CHECKS = list(HealthCheck)

# Warning of functions that copy a view, as scanpy's do.
_EXPECTED_WARNINGS = (ImplicitModificationWarning, SparseEfficiencyWarning)


class Refused(Exception):  # noqa: N818 - an outcome, not an error
    """There is no meaningful result: the function must refuse the input."""


def refuse(is_refused: bool, why: str) -> None:
    """In a reference: these values must be refused."""
    if is_refused:
        raise Refused(why)


@dataclass(frozen=True)
class Function:
    """A public function, how to call it, and its reference."""

    # Takes an AnnData and returns the results by name: arrays, tables, numbers.
    call: Callable[[AnnData], Results]
    # Takes the values and an AnnData without X but with obs and var, and returns the expected
    # results; raises `Refused`. None: only compare forms with each other.
    reference: Callable[[Values, AnnData], Results | None] | None = None
    values: st.SearchStrategy[Values] = field(default_factory=values)
    forms: st.SearchStrategy[Form] = field(default_factory=forms)
    # Tolerance, relative to each number and to the largest of its array; and its reason.
    rtol: float = 0.0
    why: str = "exact"
    # Whether all storages give the same bits, too (but of reals only if each cell's are stored in
    # the order of genes), or are close (sums of products of counts and reals depend on that order),
    # or may give one of several equally good results.
    storages: Literal["bits", "close", "ties"] = "bits"
    plain: Form = CANONICAL  # storage that the others are compared with
    scale: Callable[[Values], float] | None = None  # size before rounding, if not the result's
    lazy: tuple[str, ...] = ()  # results that are Dask arrays for a lazy X
    warns: tuple[str, ...] = ()  # messages (regular expressions) of documented warnings
    typical: Values | None = TYPICAL  # always tried; None where the function wants others


def judge_some(function: Function, n: int) -> None:
    """Judge the typical values and a few examples: the same each time, unless
    ``SCATLAS_HYPOTHESIS`` says otherwise.
    """
    if function.typical is not None:
        judge(function, function.typical, Form(cut="uneven", seed=1))

    @settings(
        max_examples=n, phases=[Phase.generate, Phase.shrink], suppress_health_check=ALL_CHECKS
    )
    @given(function.values, function.forms)
    def check(values: Values, form: Form) -> None:
        judge(function, values, form)

    check()


def judge(function: Function, values: Values, form: Form) -> None:
    """Fail if a check fails for these values in this form."""
    base = function.plain
    if values.dense.dtype == np.float16:  # SciPy has no sparse matrix of this type
        base = Form(storage="c")
        form = replace(form, storage="fortran") if form.is_sparse else form
    found = _outcome(function, values, form)
    scale = 0.0 if function.scale is None else function.scale(values)
    whole = replace(form, cut=None, view="")
    refused = isinstance(found, ScatlasError)
    # Sums depend on the order of a cell's stored values. Those of a view have another order.
    exact = function.storages == "bits" and not (form.shuffled and values.kind in REALS)
    bases = [(whole, exact or not (form.shuffled and form.view))]
    if function.storages != "ties":
        bases.append((base, exact))
    for other, same in bases:
        if other == form:
            continue
        plain = _outcome(function, values, other)
        _check_same_kind(plain, found)
        if not refused:
            rtol = 0.0 if same else max(function.rtol, 1e-12)
            _check_equal(found, plain, rtol, f"as {other}", scale)
            _check_types(found, plain)
    if function.reference is None or (values.dense.dtype == np.float16 and refused):
        return  # no kernel supports float16, which may be refused
    if refused and values.sums_may_overflow:
        return  # though this sum may fit
    expected = _expected(function, values)
    if isinstance(expected, Refused):
        assert refused, f"not refused, though {expected}: {found}"
        return
    if expected is None:
        return
    assert not refused, f"refused: {found!r}, expected {expected}"
    _check_equal(_known(found, expected), expected, function.rtol, function.why, scale)


def _expected(function: Function, values: Values) -> Results | Refused | None:
    """Results of the reference."""
    bare = Form(storage="c").adata(values)
    del bare.X
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return function.reference(values, bare)
        except Refused as refusal:
            return refusal


def _outcome(function: Function, values: Values, form: Form) -> Results | ScatlasError:
    """Results in memory, or the error."""
    adata = form.adata(values)
    whole = adata._adata_ref if adata.is_view else adata
    held = buffers(whole.X)
    before = [array.copy() for array in held]
    beside = _beside(whole)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for category in _EXPECTED_WARNINGS:
            warnings.simplefilter("ignore", category)
        if values.kind == "nonfinite":  # for which NumPy warns about inf - inf
            warnings.simplefilter("ignore", RuntimeWarning)
        for message in function.warns:
            warnings.filterwarnings("ignore", message)
        try:
            results = function.call(adata)
            if form.cut is not None:
                for name in function.lazy:
                    assert hasattr(results[name], "dask"), f"{name} is not lazy"
            outcome = {name: in_memory(result) for name, result in results.items()}
        except ScatlasError as error:
            _check_sentence(error)
            outcome = error
    for array, old in zip(held, before, strict=True):
        np.testing.assert_array_equal(array, old, "a buffer of X was written to")
    _check_beside(_beside(whole), beside)
    return outcome


def _check_sentence(error: ScatlasError) -> None:
    text = str(error)
    assert len(text) > 20, f"no sentence: {text!r}"
    assert "\n" not in text, f"more than a sentence: {text!r}"


def in_memory(result: Any) -> Any:
    """A result as a NumPy array or a table of these."""
    if hasattr(result, "compute"):
        result = result.compute(scheduler="synchronous")
    if sparse.issparse(result):
        return result.toarray()
    if isinstance(result, pd.DataFrame):
        return {name: np.asarray(column) for name, column in result.items()}
    if isinstance(result, Mapping):
        return {name: in_memory(item) for name, item in result.items()}
    return np.asarray(result)


def _beside(adata: AnnData) -> tuple[pd.DataFrame, pd.DataFrame, np.ndarray]:
    """Contents of the AnnData except X."""
    return adata.obs.copy(), adata.var.copy(), np.array(adata.layers["other"])


def _check_beside(found: tuple, before: tuple) -> None:
    for now, old in zip(found[:2], before[:2], strict=True):
        pd.testing.assert_frame_equal(now[old.columns], old)
    np.testing.assert_array_equal(found[2], before[2], "a layer was changed")


def _check_same_kind(plain: Any, found: Any) -> None:
    refused = [isinstance(outcome, ScatlasError) for outcome in (plain, found)]
    assert refused[0] == refused[1], f"plain: {plain!r}; this form: {found!r}"
    if refused[0]:
        assert type(plain) is type(found), f"{plain!r} and {found!r}"


def _known(found: Any, expected: Any) -> Any:
    """Results that the reference has, too."""
    if not isinstance(expected, Mapping):
        return found
    return {name: _known(found[name], item) for name, item in expected.items()}


def _check_types(found: Any, plain: Any) -> None:
    if isinstance(plain, Mapping):
        for key, item in plain.items():
            _check_types(found[key], item)
        return
    assert found.dtype == plain.dtype, f"{found.dtype}, but {plain.dtype} of the plain form"


def _check_equal(
    found: Any, expected: Any, rtol: float, why: str, scale: float, name: str = ""
) -> None:
    if isinstance(expected, Mapping):
        assert found.keys() == expected.keys(), f"{name}: {found.keys()} and {expected.keys()}"
        for key, item in expected.items():
            _check_equal(found[key], item, rtol, why, scale, f"{name}{key} ")
        return
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape, f"{name}: {found.shape}, not {expected.shape}"
    message = f"{name}({why})"
    if rtol == 0.0 or found.dtype.kind != "f":
        np.testing.assert_array_equal(found, expected, message)
        return
    finite = np.abs(expected[np.isfinite(expected)].astype(np.float64))
    atol = rtol * finite.max(initial=scale)
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol, err_msg=message)
