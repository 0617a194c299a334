"""The address of `d2e serve`."""

from __future__ import annotations

import pytest

from d2e_sft.server.start import listening
from d2e_sft.util.errors import UserError


@pytest.mark.parametrize(
    ("host", "remedy"), [("127.0.0.1", "another --port"), ("192.0.2.1", "--host"), ("no.such.invalid", "--host")]
)
def test_an_address_that_cannot_be_listened_on_says_which_part_to_change(host: str, remedy: str) -> None:
    with listening("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(UserError) as refused:
            listening(host, taken.getsockname()[1])
    assert remedy in str(refused.value.remedy)
