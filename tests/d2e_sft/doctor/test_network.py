"""Services are asked at the same time, unless the environment is offline."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from d2e_sft.doctor.network import Service, ask, services
from tests.d2e_sft.doctor.conftest import named
from tests.factories import ScriptedServer
from tests.servers import free_port


@pytest.fixture
def answering() -> Iterator[str]:
    with ScriptedServer(lambda path, request: (404, {})) as server:
        yield server.url


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that accepts connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_services_are_asked_at_the_same_time_and_not_for_long(answering: str, silent: str) -> None:
    closed = f"http://127.0.0.1:{free_port()}"
    asked = [
        Service("up", answering, "", "-"),
        Service("silent", silent, "", "wait"),
        Service("mute", silent, "", "wait"),
        Service("closed", closed, "", "start it"),
        Service("wrong", "no address", "", "correct it"),
        Service("off", silent, "WANDB_MODE=offline", "-"),
    ]
    started = time.monotonic()
    found = list(ask(asked, seconds=1))
    assert time.monotonic() - started < 3
    assert {finding.name: finding.status for finding in found} == {
        "up": "ok", "silent": "warn", "mute": "warn", "closed": "warn", "wrong": "warn", "off": "ok",
    }  # fmt: skip
    assert named(found, "closed").remedy == "start it"
    assert named(found, "off").value == "not asked: WANDB_MODE=offline"


@pytest.mark.parametrize(
    ("environment", "name", "url", "is_offline"),
    [
        ({}, "Hub", "https://huggingface.co", False),
        ({"HF_ENDPOINT": "https://mirror"}, "Hub", "https://mirror", False),
        ({"HF_HUB_OFFLINE": "1"}, "Hub", "https://huggingface.co", True),
        ({"HF_HUB_OFFLINE": "0"}, "Hub", "https://huggingface.co", False),
        ({"TRANSFORMERS_OFFLINE": "true"}, "Hub", "https://huggingface.co", True),
        ({"WANDB_MODE": "disabled"}, "wandb", "https://api.wandb.ai", True),
        ({"WANDB_BASE_URL": "https://own"}, "wandb", "https://own", False),
        ({"MLFLOW_TRACKING_URI": "http://own:5000"}, "mlflow", "http://own:5000", False),
    ],
)
def test_the_environment_sets_the_services(environment: dict[str, str], name: str, url: str, is_offline: bool) -> None:
    service = next(item for item in services(environment) if item.name == name)
    assert (service.url, bool(service.offline)) == (url, is_offline)
