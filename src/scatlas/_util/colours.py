"""Colours of categories, in figures and in exported files."""

from __future__ import annotations

import math

import numpy as np

# Okabe, Ito (2008), without the yellow that vanishes on white; black last.
_OKABE_ITO = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#222222")


def colours(n: int) -> list[str]:
    """``n`` colours for categories, as hex strings, the same for the same ``n``.

    Up to 7 they are those of Okabe and Ito, which all kinds of colour vision tell apart. No set of
    more is: beyond, neighbours differ in lightness as well as in hue (OKLCH).
    """
    if n <= len(_OKABE_ITO):
        return list(_OKABE_ITO[:n])
    levels = ((0.58, 0.15), (0.76, 0.12), (0.42, 0.12))
    golden = math.pi * (3 - math.sqrt(5))
    return [_oklch(*levels[i % 3], 0.5 + i // 3 * golden + i % 3 * math.tau / 3) for i in range(n)]


def _oklch(lightness: float, chroma: float, hue: float) -> str:
    """Hex colour of OKLCH coordinates (Ottosson 2020), clipped to what screens show."""
    a, b = chroma * math.cos(hue), chroma * math.sin(hue)
    to_lms = np.array([[0.3963377774, 0.2158037573], [-0.1055613458, -0.0638541728]])
    first, second = lightness + to_lms @ (a, b)
    third = lightness - 0.0894841775 * a - 1.2914855480 * b
    lms = np.array([first, second, third]) ** 3
    linear = (
        np.array(
            [
                [4.0767416621, -3.3077115913, 0.2309699292],
                [-1.2684380046, 2.6097574011, -0.3413193965],
                [-0.0041960863, -0.7034186147, 1.7076147010],
            ]
        )
        @ lms
    ).clip(0, 1)
    srgb = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return "#" + "".join(f"{round(255 * value):02x}" for value in srgb)
