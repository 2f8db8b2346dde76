"""Plates and atlas of the tests of the workflow."""

from __future__ import annotations

from tests.workflow.conftest import built, plates, shared, two

__all__ = ["built", "plates", "shared", "two"]
