"""The address of `d2e serve`."""

from __future__ import annotations

import json
import shlex
from argparse import Namespace
from typing import Any

import pytest

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import Format
from d2e_sft.server.start import ServeOptions, example_request, listening
from d2e_sft.util.errors import UserError
from d2e_sft.vllm.server.serve import check_address


@pytest.mark.parametrize(
    ("host", "remedy"), [("127.0.0.1", "another --port"), ("192.0.2.1", "--host"), ("no.such.invalid", "--host")]
)
def test_an_address_that_cannot_be_listened_on_says_which_part_to_change(host: str, remedy: str) -> None:
    with listening("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(UserError) as refused:
            listening(host, taken.getsockname()[1])
    assert remedy in str(refused.value.remedy)


@pytest.mark.parametrize(("name", "fmt"), [("default", "nli"), ("default", "mcq"), ("neutral", "qa")])
def test_the_example_is_a_command_in_the_words_of_training(name: str, fmt: Format) -> None:
    options = ServeOptions(prompt_set=name, format=fmt, is_worded=True, api_key="secret")
    command = example_request("runs/it's", options, "http://127.0.0.1:8000/v1").partition("\ncurl ")[2]
    url, body = (shlex.split(command)[place] for place in (1, -1))
    asked = json.loads(body)
    assert (url, asked["model"]) == ("http://127.0.0.1:8000/v1/chat/completions", "runs/it's")
    [user] = asked["messages"]  # the server adds the system message
    assert options.system_of(load_prompt_set(name), fmt) == load_prompt_set(name).zero_shot[fmt].system
    assert asked["context"] not in user["content"]
    assert "secret" not in command


def test_no_example_is_shown_of_a_model_whose_wording_is_unknown() -> None:
    assert example_request("m", ServeOptions(), "http://127.0.0.1:8000/v1") == ""


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
