"""Numbers that a user passes: whole ones, seeds, and one per cell."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def whole_number(value: Any, name: str, *, least: float = -math.inf, most: float = math.inf) -> int:
    """A whole number within bounds, as an int; 20.0, as R and JSON write it, is one.

    Raises
    ------
    InputError
        It is another number, or none.
    """
    try:
        n = int(value)
        if n == value and least <= n <= most:
            return n
    except (TypeError, ValueError, OverflowError):
        pass
    bounds = (
        "" if least == -math.inf else f" from {least} {'on' if most == math.inf else f'to {most}'}"
    )
    msg = f"{name}={value!r} is not possible: give a whole number{bounds}"
    raise InputError(msg)


def random_state_of(seed: int | np.random.RandomState | None) -> np.random.RandomState:
    """Random numbers of a seed; None draws one."""
    if seed is None or isinstance(seed, np.random.RandomState):
        return seed or np.random.RandomState()
    return np.random.RandomState(whole_number(seed, "random_state", least=0, most=2**32 - 1))


def seed_number(seed: int | np.random.RandomState | None) -> int:
    """A seed as an int, drawn where it is None or has random numbers itself."""
    if seed is None or isinstance(seed, np.random.RandomState):
        return int(random_state_of(seed).randint(2**31))
    return whole_number(seed, "random_state", least=0, most=2**32 - 1)


def as_numbers(values: Any, name: str) -> NDArray[Any]:
    """Array of numbers, float64 for numbers that are Python objects.

    Raises
    ------
    InputError
        Some are no numbers.
    """
    found = np.asarray(values)
    if found.dtype.kind in "biuf":
        return found
    try:
        if found.dtype.kind == "O" and not any(isinstance(value, str) for value in found.flat):
            return found.astype(np.float64)
    except (TypeError, ValueError):
        pass
    msg = f"{name} holds values of type {found.dtype} that are no numbers: give numbers"
    raise InputError(msg)
