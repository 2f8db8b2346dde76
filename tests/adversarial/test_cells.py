import pytest

from tests.adversarial.cells import FUNCTIONS
from tests.adversarial.judge import judge_some


@pytest.mark.examples
@pytest.mark.parametrize("name", FUNCTIONS)
def test_any_matrix(name: str) -> None:
    judge_some(FUNCTIONS[name], 6)
