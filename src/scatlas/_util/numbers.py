"""Numbers that a user passes: whole ones, sizes in bytes, seeds, and one per cell."""

from __future__ import annotations

import re
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas.errors import ConfigError, InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def whole_number(value: Any, name: str, *, least: int = 0, most: int | None = None) -> int:
    """A whole number within bounds, as an int; 20.0, as R and JSON write it, is one."""
    try:
        n = int(value)
        if n == value and least <= n and (most is None or n <= most):
            return n
    except (TypeError, ValueError, OverflowError):
        pass
    upper = "on" if most is None else f"to {most}"
    raise InputError(f"{name}={value!r} is not possible: give a whole number from {least} {upper}")


def check_positive(value: Any, name: str) -> None:
    """Refuse anything but a finite number from 0 on."""
    if not (isinstance(value, Real) and 0 <= float(value) < np.inf):
        raise InputError(f"{name}={value!r} is not possible: give a finite number from 0 on")


def parse_bytes(size: str | int) -> int:
    """Bytes of a size in a config: ``"256MB"`` (10^6 bytes each), ``"1.5 GiB"`` (2^30), 100000.

    Dask's takes 0.4 s to import and accepts negative sizes.
    """
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(?:([kmgt])(i?))?b?\s*", str(size).lower())
    n_bytes = 0
    if match:
        power = " kmgt".index(match[2] or " ")
        n_bytes = int(float(match[1]) * (1024 if match[3] else 1000) ** power)
    if n_bytes < 1:
        msg = f"a size of {size!r} is not understood: write a number and a unit, such as 256MB"
        raise ConfigError(msg)
    return n_bytes


def seed_number(seed: Any, name: str = "random_state") -> int:
    """A seed as an int, drawn where it is None or has random numbers itself."""
    if seed is None or isinstance(seed, np.random.RandomState):
        return int((seed or np.random.RandomState()).randint(2**31))
    if isinstance(seed, np.random.Generator | np.random.BitGenerator | np.random.SeedSequence):
        return int(np.random.default_rng(seed).integers(2**31))
    return whole_number(seed, name, most=2**32 - 1)


def as_random_state(options: dict[str, Any]) -> dict[str, Any]:
    """Options of a function with ``rng``, as scanpy 1.13 names it, as ``random_state``."""
    rng, others = options["rng"], {name: options[name] for name in options if name != "rng"}
    if "random_state" in others:
        raise InputError("rng and random_state are the same option: give one of them")
    return others if rng is None else others | {"random_state": seed_number(rng, "rng")}


def random_state_of(seed: Any) -> np.random.RandomState:
    """Random numbers of a seed; None draws one."""
    if isinstance(seed, np.random.RandomState):
        return seed
    return np.random.RandomState(seed_number(seed))


def as_numbers(values: Any, name: str) -> NDArray[Any]:
    """Array of numbers, float64 for numbers that are Python objects."""
    found = np.asarray(values)
    if found.dtype.kind in "biuf":
        return found
    try:
        if found.dtype.kind == "O" and not any(isinstance(value, str) for value in found.flat):
            return found.astype(np.float64)
    except (TypeError, ValueError):
        pass
    raise InputError(f"{name} holds values of type {found.dtype} that are no numbers: give numbers")
