"""Whether the Hub and the trackers answer, within two seconds for all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from d2e_sft.doctor.finding import Finding
from d2e_sft.model.storage.network import why_silent
from d2e_sft.util.secrets import public_address

_SECONDS = 2.0
_ON = {"1", "true", "yes", "on"}


@dataclass(frozen=True)
class Service:
    """A service on the network, and what to do if it does not answer."""

    name: str
    url: str
    offline: str  # the setting that forbids asking, or ""
    remedy: str


def check_network() -> Iterator[Finding]:
    """Report whether the Hub, wandb and a configured MLflow server answer, unless the environment is offline."""
    return ask(services(os.environ))


def services(environment: Mapping[str, str]) -> list[Service]:
    """Return the services that training and data builders use in this environment."""
    switches = [
        name for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if environment.get(name, "").lower() in _ON
    ]
    mode = environment.get("WANDB_MODE", "")
    found = [
        Service(
            "Hub",
            environment.get("HF_ENDPOINT") or "https://huggingface.co",
            f"{switches[0]}={environment[switches[0]]}" if switches else "",
            "set HTTPS_PROXY, or HF_ENDPOINT for a mirror; offline, set HF_HUB_OFFLINE=1 and use folders or builtin:…",
        ),
        Service(
            "wandb",
            environment.get("WANDB_BASE_URL") or "https://api.wandb.ai",
            f"WANDB_MODE={mode}" if mode in ("offline", "disabled", "dryrun") else "",
            "set WANDB_MODE=offline (`wandb sync` later), or train.report_to=tensorboard",
        ),
    ]
    mlflow = environment.get("MLFLOW_TRACKING_URI", "")
    if mlflow.startswith("http"):
        found.append(Service("mlflow", mlflow, "", "start the server, or correct MLFLOW_TRACKING_URI"))
    return found


def ask(wanted: list[Service], seconds: float = _SECONDS) -> Iterator[Finding]:
    """Ask all services at the same time; those that are silent after `seconds` get a warning."""
    silent = why_silent((service.url for service in wanted if not service.offline), seconds)
    for service in wanted:
        if service.offline:
            yield Finding(service.name, "ok", f"not asked: {service.offline}")
        elif problem := silent[service.url]:
            yield Finding(service.name, "warn", f"{public_address(service.url)}: {problem}", service.remedy)
        else:
            yield Finding(service.name, "ok", f"{public_address(service.url)} answers")
