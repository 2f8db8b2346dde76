import pytest

from tests.adversarial.judge import judge_some
from tests.adversarial.stores import FUNCTIONS


@pytest.mark.examples
@pytest.mark.parametrize("name", FUNCTIONS)
def test_any_matrix(name: str) -> None:
    judge_some(FUNCTIONS[name], 3)
