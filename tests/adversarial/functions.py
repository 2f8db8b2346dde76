"""Every public function with its call and expected result."""

from __future__ import annotations

from tests.adversarial import cells, counting, groups, moments, stores

FUNCTIONS = {
    **counting.FUNCTIONS,
    **moments.FUNCTIONS,
    **groups.FUNCTIONS,
    **cells.FUNCTIONS,
    **stores.FUNCTIONS,
}
