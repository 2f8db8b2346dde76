"""Every public function: how it is called, and what it should give."""

from __future__ import annotations

from tests.adversarial import cells, counting, groups, moments, stores

FUNCTIONS = {
    **counting.FUNCTIONS,
    **moments.FUNCTIONS,
    **groups.FUNCTIONS,
    **cells.FUNCTIONS,
    **stores.FUNCTIONS,
}
