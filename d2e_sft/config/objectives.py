"""The objectives by name: their views, the defaults of their options, and how their models are decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from d2e_sft.util.errors import did_you_mean

View = Literal["original", "imagined", "refined"]
VIEWS: tuple[View, ...] = get_args(View)
ViewGradients = Literal["all", "original"]
BASE = "base"  # as `bias_model` or `prefer_reference`: the model before training
PreferForm = Literal["dpo", "ipo", "orpo", "simpo", "hinge"]
WITHOUT_REFERENCE: tuple[PreferForm, ...] = ("orpo", "simpo")


@dataclass(frozen=True)
class ObjectiveSpec:
    """The properties of an objective that recipes and model cards need.

    Attributes:
        about: Its name in model cards, after "trained for event reasoning with".
        learnt: What the answer is learnt from, for model cards; None if views and α tell.
        views: The views it always needs.
        debias, distill: The allowed values of these options, the default first.
        debiased_decoding: Subtracts the imagined view only in decoding.
        imagined_weight: The default of this option; None without such a term.
        trains_refined: The refined view has a cross entropy of its own.
        reads_content: Rows must mark the tokens of the response form.
        takes_bias_model: Supports `d2e.bias_model`.
        weighs_answers: Each answer counts 1 − p, p its probability by the imagined view.
        view_gradients: The default of this option, if no other view has a cross entropy of its own.
        options: Options of `D2ESection` that only this objective uses.
    """

    about: str
    learnt: str | None = None
    views: tuple[View, ...] = ("original",)
    debias: tuple[bool, ...] = (False,)
    distill: tuple[bool, ...] = (False,)
    debiased_decoding: bool = False
    imagined_weight: float | None = None
    trains_refined: bool = False
    reads_content: bool = False
    takes_bias_model: bool = False
    weighs_answers: bool = False
    view_gradients: ViewGradients = "all"
    options: tuple[str, ...] = ()


OF_THE_OBJECTIVE = ("debias", "distill", "imagined_weight", "view_gradients")  # options whose default it sets
_BOTH = (True, False)
OBJECTIVES = {
    "sft": ObjectiveSpec("plain supervised fine-tuning"),
    "d2e": ObjectiveSpec("D²E-SFT", debias=_BOTH, distill=_BOTH, takes_bias_model=True),
    "product": ObjectiveSpec(
        "a product of experts",
        "the product of what is predicted with and without it, so that the former need not hold the habit",
        views=("original", "imagined"),
        imagined_weight=0.0,
        reads_content=True,
        takes_bias_model=True,
        view_gradients="original",
        options=("product_weight",),
    ),
    "reweight": ObjectiveSpec(
        "answers weighted by what a guess without the context leaves open",
        "an answer counting the less, the more probable it is without it",
        views=("original", "imagined"),
        reads_content=True,
        takes_bias_model=True,
        weighs_answers=True,
        view_gradients="original",
    ),
    "honest": ObjectiveSpec(
        "cross entropy with and without the context",
        "each by itself",
        views=("original", "imagined"),
        debiased_decoding=True,
        imagined_weight=1.0,
    ),
    "teacher": ObjectiveSpec(
        "the refined view as its teacher",
        "each by itself, and the first drawn to the refined one by a divergence",
        views=("original", "refined"),
        debias=(False, True),
        distill=(True,),
        trains_refined=True,
    ),
    "honest-teacher": ObjectiveSpec(
        "the refined view as its teacher and cross entropy without the context",
        "each by itself, and the first drawn to the refined one by a divergence",
        views=("original", "imagined", "refined"),
        distill=(True,),
        debiased_decoding=True,
        imagined_weight=1.0,
        trains_refined=True,
    ),
    "weighted": ObjectiveSpec(
        "D²E-SFT with a debias ratio for each token",
        "`z_original − w·α·z_imagined`, w less where the two agree",
        debias=(True,),
        distill=_BOTH,
        takes_bias_model=True,
        options=("alpha_weight",),
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
    """Whether the name is `module:function`, a user's own objective."""
    return ":" in name


def spec_of(name: str) -> ObjectiveSpec:
    """Return the spec of an objective."""
    return OWN if is_own(name) else OBJECTIVES[name]


def check_name(name: str) -> str:
    """Return the name; ValueError, with the nearest one, if it is neither an objective nor `module:function`."""
    module, colon, function = name.partition(":")
    if name in OBJECTIVES or (colon and all(map(str.isidentifier, [*module.split("."), function]))):
        return name
    known = ", ".join(OBJECTIVES)
    raise ValueError(
        f"d2e.objective={name}: no such objective.{did_you_mean(name, OBJECTIVES)} "
        f"Expected one of {known}, or your own function as module:function"
    )


def check_form(form: Any) -> Any:
    """Return the form of a preference; ValueError for TRL's other name of one."""
    if form == "sigmoid":
        raise ValueError(f"TRL's sigmoid is 'dpo' here. Expected one of {', '.join(get_args(PreferForm))}")
    return form
