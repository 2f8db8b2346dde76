"""Every public function: how it is called, and what it should give."""

from __future__ import annotations

from tests.adversarial import counting, moments

FUNCTIONS = {**counting.FUNCTIONS, **moments.FUNCTIONS}
