"""The plates and the atlas that the tests of the workflow have built on this machine."""

from __future__ import annotations

from tests.workflow.conftest import built, plates, shared

__all__ = ["built", "plates", "shared"]
