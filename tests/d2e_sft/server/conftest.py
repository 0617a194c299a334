from collections.abc import Iterator

import pytest

from d2e_sft.model.loading import LoadedModel
from tests.d2e_sft.server.served import Served, serving, tiny


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    """The same as the server's, which its thread alone may use."""
    return tiny()


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serving(tiny()) as served:
        yield served
