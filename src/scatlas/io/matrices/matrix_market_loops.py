"""Loop over the text of Matrix Market files (Numba)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_LINE_START, _IN_FIELD, _BEHIND_FIELD, _IN_COMMENT = range(4)


@njit(nogil=True, cache=True)
def squeeze_blanks(text: NDArray[np.uint8], out: NDArray[np.uint8]) -> int:
    """Write whole lines with one blank between fields and no comments, and return their size."""
    n = 0
    state = _LINE_START
    for c in text:
        if c > 32:
            if state == _LINE_START and c == 37:  # %
                state = _IN_COMMENT
            if state == _IN_COMMENT:
                continue
            if state == _BEHIND_FIELD:
                out[n] = 32
                n += 1
            out[n] = c
            n += 1
            state = _IN_FIELD
        elif c == 10 or c == 13:  # \n, \r
            if state in (_IN_FIELD, _BEHIND_FIELD):
                out[n] = 10
                n += 1
            state = _LINE_START
        elif state == _IN_FIELD:
            state = _BEHIND_FIELD
    return n
