"""The objectives that a recipe can name (`d2e.objective`): which views each needs and how its model is decoded.

The formulas are the functions of the same names in `d2e_sft/objective/objectives.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from d2e_sft.util.errors import did_you_mean

View = Literal["original", "imagined", "refined"]
ViewGradients = Literal["all", "original"]


@dataclass(frozen=True)
class ObjectiveSpec:
    """What a recipe has to know of an objective.

    Attributes:
        about: what it is, for model cards; follows "trained for event reasoning with".
        learnt: what an answer is learnt from, for model cards; None where the views and α say it.
        views: needed whatever else the recipe says.
        debias: what `d2e.debias` may be, the default first; whether α · imagined is subtracted in training.
        distill: what `d2e.distill` may be, the default first; whether the refined view teaches by a divergence.
        debiased_decoding: its model is decoded by subtraction though nothing is subtracted in training.
        trains_each_view: views other than the original have a cross entropy of their own, which needs their gradients.
        reads_content: tokens that the response form fixes are treated apart, so rows must say which those are.
        frozen: views whose logits are those of the model as it was before training.
    """

    about: str
    learnt: str | None = None
    views: tuple[View, ...] = ("original",)
    debias: tuple[bool, ...] = (False,)
    distill: tuple[bool, ...] = (False,)
    debiased_decoding: bool = False
    trains_each_view: bool = False
    reads_content: bool = False
    frozen: tuple[View, ...] = ()


_BOTH = (True, False)
OBJECTIVES = {
    "sft": ObjectiveSpec("plain supervised fine-tuning"),
    "d2e": ObjectiveSpec("D²E-SFT", debias=_BOTH, distill=_BOTH),
    "product": ObjectiveSpec(
        "a product of experts",
        "the product of what is predicted with and without it, so that the former need not hold the habit",
        views=("original", "imagined"),
        trains_each_view=True,
        reads_content=True,
    ),
    "honest": ObjectiveSpec(
        "cross entropy with and without the context",
        "each by itself",
        views=("original", "imagined"),
        debiased_decoding=True,
        trains_each_view=True,
    ),
    "teacher": ObjectiveSpec(
        "the refined view as its teacher",
        "each by itself, and the first drawn to the refined one by a divergence",
        views=("original", "refined"),
        debias=(False, True),
        distill=(True,),
        trains_each_view=True,
    ),
    "honest-teacher": ObjectiveSpec(
        "the refined view as its teacher and cross entropy without the context",
        "each by itself, and the first drawn to the refined one by a divergence",
        views=("original", "imagined", "refined"),
        distill=(True,),
        debiased_decoding=True,
        trains_each_view=True,
    ),
    "frozen": ObjectiveSpec(
        "D²E-SFT against the habit of the model before training",
        "`z_original − α·z_imagined`, the imagined logits those of the model before training",
        debias=(True,),
        distill=_BOTH,
        frozen=("imagined",),
    ),
    "weighted": ObjectiveSpec(
        "D²E-SFT with a debias ratio for each token",
        "`z_original − w·α·z_imagined`, w less where the two agree",
        debias=(True,),
        distill=_BOTH,
    ),
}
OWN = ObjectiveSpec(
    "an objective of its own", "a function of its author's own", debias=(False, True), distill=(False, True)
)


def is_own(name: str) -> bool:
    """Whether it names a function, `module:function`."""
    return ":" in name


def spec_of(name: str) -> ObjectiveSpec:
    """The spec of a known objective, or that of all own ones."""
    return OWN if is_own(name) else OBJECTIVES[name]


def check_name(name: str) -> str:
    """The name itself.

    Raises:
        ValueError: it is neither an objective nor `module:function`; with the nearest that there is.
    """
    module, colon, function = name.partition(":")
    if name in OBJECTIVES or (colon and _is_dotted(module) and function.isidentifier()):
        return name
    known = ", ".join(OBJECTIVES)
    raise ValueError(
        f"d2e.objective={name}: no such objective.{did_you_mean(name, OBJECTIVES)} "
        f"Expected one of {known}, or a function of your own as module:function"
    )


def check_options(name: str, given: set[str], debias: bool, distill: bool, view_gradients: str) -> None:
    """Refuse what the objective cannot do.

    Args:
        given: the options that the recipe itself says.

    Raises:
        ValueError: with what was expected.
    """
    spec = spec_of(name)
    for option, value, allowed in (("debias", debias, spec.debias), ("distill", distill, spec.distill)):
        if option in given and value not in allowed:
            word, other = (str(one).lower() for one in (value, not value))
            raise ValueError(
                f"d2e.{option}={word}: the objective {name} is always with {option}={other}; "
                "set that, or leave the option out"
            )
    if spec.trains_each_view and view_gradients == "original":
        raise ValueError(
            f"d2e.view_gradients=original: the objective {name} trains the other views by cross entropies of their "
            "own, which need their gradients; expected all"
        )


def _is_dotted(module: str) -> bool:
    return all(part.isidentifier() for part in module.split("."))
