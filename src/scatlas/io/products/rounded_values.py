"""Fractional values of a plate that are rounded while it is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scatlas.blocks import csr
from scatlas.kernels.counts.check_cpu import RoundedCounts, round_counts

if TYPE_CHECKING:
    import scipy.sparse as sp

# What a user does whose counts are fractional for a reason.
HOW_TO_ROUND = (
    "if these are expected counts, as of alevin, RSEM or a correction for ambient RNA, write "
    "'source: {fractional: round}' in the config, or round in a column 'fractional' of the plate "
    "sheet"
)


class RoundedValues:
    """Rounds blocks, in several threads at once, and keeps how much it has changed.

    Parameters
    ----------
    rounds
        False leaves all values as they are.
    """

    def __init__(self, *, rounds: bool) -> None:
        self._rounds = rounds
        self._parts: list[RoundedCounts] = []

    def __call__(self, block: sp.csr_matrix) -> sp.csr_matrix:
        """Round the values of a block."""
        if not self._rounds:
            return block
        found = round_counts(block.data)
        self._parts.append(found._replace(values=found.values[:0]))
        return csr(found.values, block.indices, block.indptr, block.shape[1])

    def facts(self) -> dict[str, int]:
        """Sums over the blocks, which are whole numbers: their order does not matter."""
        if not self._rounds:
            return {}
        return {
            "n_rounded_values": sum(part.n_changed for part in self._parts),
            "n_rounded_counts": sum(part.n_counts for part in self._parts),
        }

    def notice(self, key: str, n_stored: int, total: int) -> str:
        """Sentence for the log; "" if nothing was rounded.

        Parameters
        ----------
        key
            Element of the counts.
        n_stored, total
            Values of the file, and the sum of all counts after rounding.
        """
        n_values, n_counts = self.facts().values() if self._rounds else (0, 0)
        if not n_values:
            return ""
        share = 100 * n_counts / max(total, 1)
        return (
            f"{n_values:,} of {n_stored:,} values of {key} were fractional: rounded; they hold "
            f"{share:.1f}% of the counts"
        )
