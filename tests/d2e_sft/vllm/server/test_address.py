"""The address and the key of `d2e serve` come from its own options, wherever vLLM's are from."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest

from d2e_sft.server.start import ServeOptions
from d2e_sft.util.errors import UserError
from d2e_sft.vllm.server.serve import check_address


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"api_key": ["S"]}, "got --api-key after MODEL"),
        ({"host": "0.0.0.0"}, "got --host after MODEL"),
        ({"port": 9000}, "got --port after MODEL"),
        ({"allowed_origins": ["https://app.example"]}, "got --allowed-origins after MODEL"),
        ({"api_key": "S", "host": "0.0.0.0"}, "got --host and --api-key after MODEL"),
        ({}, None),
        ({"api_key": []}, None),
    ],
)
def test_an_address_or_a_key_after_the_model_is_refused(changed: dict[str, Any], said: str | None) -> None:
    options = ServeOptions(api_key="the-servers-own")
    arguments = Namespace(
        **{"host": options.host, "port": options.port, "api_key": None, "allowed_origins": ["*"], **changed}
    )
    if said is None:
        check_address(arguments, options)
        return
    with pytest.raises(UserError, match=said) as refused:
        check_address(arguments, options)
    assert "before MODEL" in str(refused.value.remedy)
