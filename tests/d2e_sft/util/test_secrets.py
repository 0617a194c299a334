"""Keys of the environment are hidden in texts and addresses, and words are left alone."""

from __future__ import annotations

import pytest

from d2e_sft.util.secrets import names_a_secret, public_address, without_secrets


def test_the_values_of_keys_and_tokens_are_hidden_the_longest_first() -> None:
    environment = {
        "HF_TOKEN": "hf_0123456789", "MY_API_KEY": "hf_0123456789ab", "OPENAI_API_KEY": "EMPTY",
        "SSH_KEY": "/home/me/.ssh/key", "PWD": "0123456789abcdef", "TOKENIZERS_PARALLELISM": "false",
    }  # fmt: skip
    text = "hf_0123456789ab and hf_0123456789, EMPTY; /home/me/.ssh/key 0123456789abcdef false"
    assert without_secrets(text, environment) == (
        "[MY_API_KEY] and [HF_TOKEN], EMPTY; /home/me/.ssh/key 0123456789abcdef false"
    )


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("HF_TOKEN", True), ("train.hub_token", True), ("AWS_SECRET_ACCESS_KEY", True), ("wandb.password", True),
        ("GITHUB_PAT", True), ("DB_PASSWORD_PROD", True), ("PATH", False), ("COMPAT", False),
        ("max_tokens", False), ("micro_batch_tokens", False), ("TOKENIZERS_PARALLELISM", False), ("keyword", False),
    ],
)  # fmt: skip
def test_what_names_a_secret(name: str, secret: bool) -> None:
    assert names_a_secret(name) is secret


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://host:8/v1", "https://host:8/v1"),
        ("https://me:word@host:8/v1", "https://[hidden]@host:8/v1"),
        ("https://host/v1?key=word", "https://host/v1?[hidden]"),
        ("http://[host", "(no address)"),
        ("me:word@host/v1", "[hidden]"),
    ],
)
def test_an_address_is_shown_without_what_may_be_a_key(url: str, shown: str) -> None:
    assert public_address(url) == shown
