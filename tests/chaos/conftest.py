"""The folder that all workers of pytest see, as in the tests of the workflow."""

from tests.workflow.conftest import shared

__all__ = ["shared"]
