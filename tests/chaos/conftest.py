"""The folder that all workers of pytest share, as in the tests of the workflow."""

from tests.workflow.conftest import shared

__all__ = ["shared"]
