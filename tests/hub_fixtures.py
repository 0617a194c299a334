"""The stand-in of the Hub as a fixture: this process talks to it instead of the Hub."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hub_server import TOKEN, HubServer


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A running stand-in, and a token for it."""
    with HubServer() as server:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        # The stand-in speaks the older of the two ways for large files; xet is a store of chunks of its own.
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server
