"""Check the states in a checkpoint before a run resumes from them: optimizer, schedule, random numbers.

They are pickles, which can contain code. transformers loads its own as data only; DeepSpeed runs what its pickles
name, so these are read without running them, and may name DeepSpeed's classes of states only.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TrainerState
from transformers.trainer_pt_utils import safe_globals

from d2e_sft.train.run_folder import TRAINER_STATE
from d2e_sft.util.errors import UserError

_LATEST = "latest"  # names the folder of DeepSpeed's states
_DEEPSPEED = frozenset(
    {
        "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
        "deepspeed.runtime.fp16.loss_scaler.LossScaler",
        "deepspeed.runtime.zero.config.ZeroStageEnum",
        "deepspeed.utils.tensor_fragment.fragment_address",
    }
)


def check_states(checkpoint: Path) -> None:
    """Check that each state can be loaded, and that loading it runs no code.

    Raises:
        UserError: a state that `d2e train` did not write; names the file.
    """
    for pattern, check in _CHECKS.items():
        for path in sorted(checkpoint.glob(pattern)):
            try:
                check(path)
            except Exception as error:  # a file that anyone may have written: unpickling can raise anything
                reason = str(error).strip() if isinstance(error, _NotOursError) else type(error).__name__
                raise UserError(
                    f"{path}: is not a state that `d2e train` wrote ({reason}); it was not loaded",
                    remedy=f"if others gave you this run, do not use it; otherwise remove {checkpoint.name} to resume "
                    "from an earlier checkpoint, or start over with --overwrite",
                ) from None


class _NotOursError(Exception):
    """A state of another form, with what is wrong with it."""


def _check_pickle(path: Path, allowed: frozenset[str] = frozenset()) -> None:
    """Raise for a pickle that names anything but tensors, plain data and `allowed`; loads nothing."""
    with safe_globals():  # arrays of NumPy
        named = set(torch.serialization.get_unsafe_globals_in_checkpoint(path)) - allowed
    if named:
        raise _NotOursError(f"its pickle names {', '.join(sorted(named))}, which may run code")


def _loaded(path: Path) -> dict[str, Any]:
    _check_pickle(path)
    with safe_globals():
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)  # reads no tensor
    if not isinstance(state, dict):
        raise _NotOursError(f"it contains {type(state).__name__}; expected dict")
    return state


def _with_keys(*keys: str) -> Callable[[Path], None]:
    def check(path: Path) -> None:
        state = _loaded(path)
        if missing := [key for key in keys if key not in state]:
            raise _NotOursError(f"it has no {', '.join(missing)}")

    return check


def _check_random(path: Path) -> None:
    state = _loaded(path)
    random.Random().setstate(state["python"])
    np.random.RandomState().set_state(state["numpy"])
    torch.Generator().set_state(state["cpu"])


def _check_deepspeed(path: Path) -> None:
    _check_pickle(path, _DEEPSPEED)


def _check_latest(path: Path) -> None:
    name = path.read_text(encoding="utf-8").strip()
    if not re.fullmatch(r"global_step[0-9]+", name):
        raise _NotOursError(f"it names {name[:100]!r}; expected global_stepN")


def _check_trainer_state(path: Path) -> None:
    step = TrainerState.load_from_json(str(path)).global_step
    if not isinstance(step, int):
        raise _NotOursError(f"its global_step is {step!r}; expected a number")


_CHECKS: dict[str, Callable[[Path], None]] = {
    TRAINER_STATE: _check_trainer_state,
    "optimizer.*": _with_keys("state", "param_groups"),  # .bin with FSDP
    "scheduler.pt": _with_keys("last_epoch"),
    "scaler.pt": _with_keys(),
    "rng_state*.pth": _check_random,
    _LATEST: _check_latest,
    "*/**/*.pt": _check_deepspeed,
}
