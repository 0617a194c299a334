"""The section `d2e` of a recipe, and the objectives that it can name: their views, and how their models are decoded.

The formulas are the functions of the same names in `d2e_sft/objective/objectives.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from d2e_sft.config.decoding import MAX_ALPHA
from d2e_sft.util.errors import did_you_mean

View = Literal["original", "imagined", "refined"]
ViewGradients = Literal["all", "original"]


class Section(BaseModel):
    """A section of a recipe: unknown keys and numbers that are none are refused."""

    model_config = ConfigDict(
        extra="forbid",
        validate_default=True,
        protected_namespaces=(),
        allow_inf_nan=False,
        use_attribute_docstrings=True,  # what stands below a key is its meaning, see `d2e_sft.config.reference`
    )


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
        imagined_weight: what `d2e.imagined_weight` is by default, of objectives that have a term for it.
        trains_refined: the refined view has a cross entropy of its own.
        reads_content: tokens that the response form fixes are treated apart, so rows must say which those are.
        frozen: views whose logits are those of the model as it was before training.
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
    frozen: tuple[View, ...] = ()


OF_THE_OBJECTIVE = ("debias", "distill", "imagined_weight", "view_gradients")  # options with a default of its own
_BOTH = (True, False)
OBJECTIVES = {
    "sft": ObjectiveSpec("plain supervised fine-tuning"),
    "d2e": ObjectiveSpec("D²E-SFT", debias=_BOTH, distill=_BOTH),
    "product": ObjectiveSpec(
        "a product of experts",
        "the product of what is predicted with and without it, so that the former need not hold the habit",
        views=("original", "imagined"),
        imagined_weight=0.0,
        reads_content=True,
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


def check_options(name: str, given: set[str], debias: bool, distill: bool) -> None:
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


def _is_dotted(module: str) -> bool:
    return all(part.isidentifier() for part in module.split("."))


class D2ESection(Section):
    """The objective, by name (see `d2e_sft/objective/objectives.py`) or a function of your own, `module:function`.

    What an objective does not use it does not read; `debias`, `distill`, `imagined_weight` and `view_gradients` are by
    default as it has them, and resolved here.
    """

    objective: Annotated[str, AfterValidator(check_name)] = "d2e"
    """The loss: d2e, sft, product, honest, teacher, honest-teacher, frozen, weighted; or `module:function`."""
    alpha: float = Field(default=0.5, ge=0, le=MAX_ALPHA, allow_inf_nan=False)
    """The debias ratio α of z_o − α·z_im, in training, and in decoding where `eval.alpha` is not set."""
    debias: bool = True
    """Subtract the imagined view; of `d2e`, false is the paper's "w/o DEE". The default is the objective's."""
    distill: bool = True
    """A divergence to the refined view; of `d2e`, false is the paper's "w/o DIE". The default is the objective's."""
    kl_weight: float = Field(default=1.0, ge=0)
    """λ, how often the divergence counts in the loss."""
    kl_direction: Literal["original_refined", "refined_original"] = "original_refined"
    """The first and the second argument of the divergence; equations 8 and 5 of the paper."""
    view_gradients: ViewGradients = "all"
    """Which views carry gradient: all of them, or the original one alone (fewer tokens in the backward)."""
    product_weight: float = Field(default=1.0, ge=0)
    """w, how much the imagined view's log-probabilities weigh in the objective `product`."""
    imagined_weight: float = Field(default=1.0, ge=0)
    """μ, how often the imagined view's cross entropy counts, of objectives that have one."""
    alpha_weight: Literal["agreement", "jsd"] = "agreement"
    """How the objective `weighted` weighs α for each token."""
    own_views: list[View] = Field(default=["original", "imagined"])
    """The views that a function of your own is given, the original one first."""

    @model_validator(mode="after")
    def _as_the_objective_has_it(self) -> Self:
        given, spec = set(self.model_fields_set), spec_of(self.objective)
        check_options(self.objective, given, self.debias, self.distill)
        if "debias" not in given:
            self.debias = spec.debias[0]
        if "distill" not in given:
            self.distill = spec.distill[0]
        if "imagined_weight" not in given and spec.imagined_weight is not None:
            self.imagined_weight = spec.imagined_weight
        if "view_gradients" not in given and self._others_are_detached:
            self.view_gradients = "original"  # their gradients are zero, so none are computed
        if self.view_gradients == "original" and self.trains_other_views:
            raise ValueError(
                f"d2e.view_gradients=original: the objective {self.objective} trains the other views by cross "
                "entropies of their own, which need their gradients; expected all"
            )
        if self.own_views[:1] != ["original"] or len(set(self.own_views)) < len(self.own_views):
            raise ValueError(f"d2e.own_views={self.own_views}: expected original first, and no view twice")
        return self

    @property
    def effective_alpha(self) -> float:
        """The ratio of training: 0 where nothing is subtracted."""
        return self.alpha if self.debias else 0.0

    @property
    def decoding_alpha(self) -> float:
        """The ratio that the objective's model is decoded with; 0 is plain decoding."""
        return self.alpha if spec_of(self.objective).debiased_decoding else self.effective_alpha

    @property
    def views(self) -> tuple[View, ...]:
        """The views that some term of the loss needs; no other is ever computed."""
        if is_own(self.objective):
            return tuple(self.own_views)
        needed = set(spec_of(self.objective).views)
        if self.effective_alpha > 0:
            needed.add("imagined")
        if self.distill and self.kl_weight > 0:
            needed.add("refined")
        order: tuple[View, ...] = ("original", "imagined", "refined")
        return tuple(view for view in order if view in needed)

    @property
    def trains_other_views(self) -> bool:
        """Whether views other than the original have a cross entropy of their own."""
        spec = spec_of(self.objective)
        return spec.trains_refined or (spec.imagined_weight is not None and self.imagined_weight > 0)

    @property
    def _others_are_detached(self) -> bool:
        return self.objective == "product" and not self.trains_other_views

    @property
    def distils_both_ways(self) -> bool:
        """Whether the divergence draws the original and the refined view to each other, as in `d2e`."""
        known = not is_own(self.objective) and not spec_of(self.objective).trains_refined
        return known and "refined" in self.views

    def of_training(self) -> dict[str, Any]:
        """What decides the training, without options that have no effect: equal for sections that train the same."""
        if is_own(self.objective):
            return self.model_dump()
        name, ratio = self.objective, self.effective_alpha
        if name == "sft" or (name in ("frozen", "weighted") and ratio == 0):
            name = "d2e"  # with nothing subtracted, and for sft no divergence
        found: dict[str, Any] = {"objective": name, "alpha": ratio, "views": self.views}
        if "refined" in self.views:
            found |= {"kl_weight": self.kl_weight}
        if self.distils_both_ways:
            found |= {"kl_direction": self.kl_direction}
        if len(self.views) > 1:
            found |= {"view_gradients": self.view_gradients}
        own_options = {"product": {"product_weight"}, "weighted": {"alpha_weight"}}
        if spec_of(self.objective).imagined_weight is not None:
            found |= {"imagined_weight": self.imagined_weight}
        return found | self.model_dump(include=own_options.get(name, set()))

    @property
    def frozen_views(self) -> tuple[View, ...]:
        """Those of the `views` whose logits come from the model as it was before training."""
        return tuple(view for view in self.views if view in spec_of(self.objective).frozen)

    @property
    def step_views(self) -> tuple[View, ...]:
        """Those of the `views` that a training step runs."""
        return tuple(view for view in self.views if view not in self.frozen_views)
