"""D²E-SFT: debiasing and distillation enhanced fine-tuning for event reasoning.

Names are imported on first use, so that `import d2e_sft` takes no time.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from d2e_sft.config.decoding import DecodingConfig
    from d2e_sft.data.sample import EventSample, read_samples, write_samples
    from d2e_sft.decoding.generation import answer_samples, generate_debiased
    from d2e_sft.model.loading import load_model
    from d2e_sft.train.config import D2EConfig
    from d2e_sft.train.trainer import D2ETrainer
    from d2e_sft.util.errors import UserError

__version__ = "0.1.0"
__all__ = [
    "D2EConfig",
    "D2ETrainer",
    "DecodingConfig",
    "EventSample",
    "UserError",
    "answer_samples",
    "generate_debiased",
    "load_model",
    "read_samples",
    "write_samples",
]
_HOMES = {
    "D2EConfig": "train.config",
    "D2ETrainer": "train.trainer",
    "DecodingConfig": "config.decoding",
    "EventSample": "data.sample",
    "UserError": "util.errors",
    "answer_samples": "decoding.generation",
    "generate_debiased": "decoding.generation",
    "load_model": "model.loading",
    "read_samples": "data.sample",
    "write_samples": "data.sample",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
