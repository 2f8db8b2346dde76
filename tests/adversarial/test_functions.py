from __future__ import annotations
import pytest
from hypothesis import given, settings, HealthCheck
from hypothesis import strategies as st
from tests.adversarial import counting
from tests.adversarial.judge import judge

TABLE = {**counting.FUNCTIONS}

@pytest.mark.parametrize("name", TABLE)
def test_any_matrix(name):
    import os
    function = TABLE[name]
    @settings(max_examples=int(os.environ.get("N", 5)), suppress_health_check=list(HealthCheck), report_multiple_bugs=True)
    @given(function.values, function.forms)
    def check(values, form):
        judge(function, values, form)
    check()
