"""How the genes of the plates agree, with the genes of one plate in memory beside the sums."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from scatlas.errors import InputError
from scatlas.workflow.config.sections import Config

if TYPE_CHECKING:
    import pandas as pd

# Below this share of genes that all plates have, their union is suggested.
_ENOUGH = 0.8


class GeneAgreement:
    """Genes of all plates so far."""

    def __init__(self) -> None:
        self._first: pd.Index | None = None
        self._first_path = ""
        self._shared: set[str] = set()
        self._all: set[str] = set()
        self._same = True

    def add(self, path: str, genes: pd.Index) -> None:
        """Add the genes of a plate, which must share one with the plates before."""
        if self._first is None:
            self._first, self._first_path = genes, path
            self._shared, self._all = set(genes), set(genes)
            return
        self._same = self._same and genes.equals(self._first)
        before = len(self._shared)
        self._shared &= set(genes)
        self._all |= set(genes)
        if before and not self._shared:
            msg = (
                f"{path}: it shares no gene with {self._first_path}: its first gene is "
                f"{genes[0]!r}, there it is {self._first[0]!r}; give files with the same kind of "
                "gene names"
            )
            raise InputError(msg)

    @property
    def n_usable(self) -> int:
        """Genes of an atlas with :attr:`setting`."""
        return len(self._all if self.setting == "union" else self._shared)

    @property
    def setting(self) -> str:
        """Value of ``genes`` in the config."""
        if self._same:
            return "same"
        allowed = get_args(Config.model_fields["genes"].annotation)
        few = len(self._shared) < _ENOUGH * len(self._all)
        return "union" if few and "union" in allowed else "intersect"

    @property
    def sentence(self) -> str:
        """What the plates share."""
        if self._same:
            return f"all plates have the same {len(self._shared):,} genes in the same order"
        return (
            f"all plates share {len(self._shared):,} genes of {len(self._all):,} that any has"
            if len(self._shared) < len(self._all)
            else f"all plates have the same {len(self._all):,} genes, in different orders"
        )
