from __future__ import annotations

import pytest

from d2e_sft.model.packing import TokenForest
from tests.d2e_sft.model.attention.cases import three_groups


@pytest.fixture(scope="session")
def forest() -> TokenForest:
    return three_groups()
