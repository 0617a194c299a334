"""The objectives by name: their views, the defaults of their options, and how their models are decoded."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from d2e_sft.config.functions import parse_named
from d2e_sft.util.errors import UserError

View = Literal["original", "imagined", "refined"]
VIEWS: tuple[View, ...] = get_args(View)
ViewGradients = Literal["all", "original"]
BASE = "base"  # as `prefer_reference`: the model before training
PreferForm = Literal["dpo", "ipo", "orpo", "simpo", "hinge"]
WITHOUT_REFERENCE: tuple[PreferForm, ...] = ("orpo", "simpo")


@dataclass(frozen=True)
class ObjectiveSpec:
    """The properties of an objective that recipes and model cards need.

    Attributes:
        about: Its name in model cards, after "trained for event reasoning with".
        learnt: What the answer is learnt from, for model cards; None if views and α tell.
        debias, distill: The allowed values of these options, the default first.
        trains_refined: The refined view has a cross entropy of its own.
        options: Options of `D2ESection` that only this objective uses.
    """

    about: str
    learnt: str | None = None
    views: tuple[View, ...] = ("original",)
    debias: tuple[bool, ...] = (False,)
    distill: tuple[bool, ...] = (False,)
    trains_refined: bool = False
    options: tuple[str, ...] = ()


ARGUMENTS = ("logits", "targets", "content", "options")  # of an objective's function
OF_THE_OBJECTIVE = ("debias", "distill")  # options whose default it sets
_BOTH = (True, False)
OBJECTIVES = {
    "sft": ObjectiveSpec("plain supervised fine-tuning"),
    "d2e": ObjectiveSpec("D²E-SFT", debias=_BOTH, distill=_BOTH),
    "teacher": ObjectiveSpec(
        "the refined view as its teacher",
        "each by itself, and the first drawn to the refined one by a divergence",
        views=("original", "refined"),
        debias=(False, True),
        distill=(True,),
        trains_refined=True,
    ),
    "prefer": ObjectiveSpec(
        "preference of the gold answer over a rejected one",
        "its cross entropy and a comparison with a rejected answer",
        options=("prefer_form", "prefer_beta", "prefer_gamma", "prefer_reference", "sft_weight"),
    ),
}
OWN = ObjectiveSpec(
    "an objective of its own", "a function of its author's own", debias=(False, True), distill=(False, True)
)


def is_own(name: str) -> bool:
    """Whether the name is `module:function`, a user's own objective, perhaps with options."""
    return ":" in name


def function_name(name: str) -> str:
    """Return `module:function` of a user's own objective, without its options."""
    return parse_named("objective", name, {})[0]


def spec_of(name: str) -> ObjectiveSpec:
    return OWN if is_own(name) else OBJECTIVES[name]


def check_name(name: str) -> str:
    """Return the name; ValueError if it is neither an objective nor `module:function` with options."""
    try:
        parse_named("objective", name, {key: {} for key in OBJECTIVES})
    except UserError as error:
        raise ValueError(error.message) from None
    return name


def check_form(form: Any) -> Any:
    """Return the form of a preference; ValueError for TRL's other name of one."""
    if form == "sigmoid":
        raise ValueError(f"TRL's sigmoid is 'dpo' here. Expected one of {', '.join(get_args(PreferForm))}")
    return form
