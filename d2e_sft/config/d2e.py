"""The section `d2e` of a recipe: the objective and its options."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from d2e_sft.config.decoding import MAX_ALPHA
from d2e_sft.config.objectives import (
    BASE,
    WITHOUT_REFERENCE,
    PreferForm,
    View,
    ViewGradients,
    check_form,
    check_name,
    is_own,
    spec_of,
)
from d2e_sft.config.sections import RecipeSection

_FORMER = {"bias_model": None, "product_weight": 1.0, "imagined_weight": 1.0, "alpha_weight": "agreement"}


class D2ESection(RecipeSection):
    """The objective, by name (see `d2e_sft/objective/objectives.py`) or your own function, `module:function`.

    The objective sets the defaults of `debias` and `distill`. Values of `debias`, `distill` and `view_gradients` that
    contradict it are errors; it ignores other options that it does not use.
    """

    objective: Annotated[str, AfterValidator(check_name)] = "d2e"
    """Loss: d2e, sft, teacher, prefer, or your own function, `module:function` or `module:function:KEY=VALUE,…`."""
    alpha: float = Field(default=0.5, ge=0, le=MAX_ALPHA, allow_inf_nan=False)
    """The debias ratio α of z_o − α·z_im, in training, and in decoding if `eval.alpha` is not set."""
    debias: bool = True
    """Subtract the imagined view; false with `d2e` is the paper's "w/o DEE". The objective sets the default."""
    distill: bool = True
    """Add a divergence to the refined view; false with `d2e` is the paper's "w/o DIE". The default as for `debias`."""
    kl_weight: float = Field(default=1.0, ge=0)
    """λ, the weight of the divergence in the loss."""
    kl_direction: Literal["original_refined", "refined_original"] = "original_refined"
    """The first and the second argument of the divergence; equations 8 and 5 of the paper."""
    view_gradients: ViewGradients = "all"
    """Which views carry gradient: all of them, or the original one only (fewer tokens in the backward)."""
    prefer_form: Annotated[PreferForm, BeforeValidator(check_form)] = "dpo"
    """The loss of a pair in the objective `prefer`; orpo and simpo need no reference."""
    prefer_beta: float | None = Field(default=None, gt=0)
    """β of `prefer`; null takes 2 for simpo and 0.1 for the other forms."""
    prefer_gamma: float = Field(default=1.0, ge=0)
    """γ, the margin that the form simpo asks for."""
    prefer_reference: str = BASE
    """The reference of dpo, ipo and hinge: `base` (the model before training), or a model of the same architecture."""
    sft_weight: float = Field(default=1.0, ge=0)
    """The weight of the gold answer's cross entropy in the objective `prefer`."""
    own_views: list[View] = Field(default=["original", "imagined"])
    """The views that your own function gets, the original one first."""

    @model_validator(mode="before")
    @classmethod
    def _without_former_keys(cls, values: Any) -> Any:
        """Drop keys that the recipes of older runs spell out at their defaults; any other value is an unknown key."""
        if not isinstance(values, dict):
            return values
        return {key: value for key, value in values.items() if key not in _FORMER or value != _FORMER[key]}

    @model_validator(mode="after")
    def _resolve_defaults(self) -> Self:
        keys_set, name, spec = set(self.model_fields_set), self.objective, spec_of(self.objective)
        for option, allowed in (("debias", spec.debias), ("distill", spec.distill)):
            value = getattr(self, option)
            if option not in keys_set:
                setattr(self, option, allowed[0])
            elif value not in allowed:
                word, expected = (str(truth).lower() for truth in (value, not value))
                raise ValueError(
                    f"d2e.{option}={word}: the objective {name} always has {option}={expected}; "
                    "set that, or leave the option out"
                )
        if self.view_gradients == "original" and spec.trains_refined:
            raise ValueError(
                f"d2e.view_gradients=original: the objective {name} trains the refined view by a cross entropy of its "
                "own, which needs gradients; expected all"
            )
        if self.own_views[:1] != ["original"] or len(set(self.own_views)) < len(self.own_views):
            raise ValueError(f"d2e.own_views={self.own_views}: expected original first, and no view twice")
        return self

    @property
    def effective_alpha(self) -> float:
        """The ratio of training; 0 if nothing is subtracted."""
        return self.alpha if self.debias else 0.0

    @property
    def views(self) -> tuple[View, ...]:
        """The views that the loss needs; no other is computed."""
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
    def prefers(self) -> bool:
        """Whether the loss compares the gold answer with a rejected one."""
        return self.objective == "prefer"

    @property
    def needs_reference(self) -> bool:
        """Whether the loss needs log-probabilities by the model before training, or by another one."""
        return self.prefers and self.prefer_form not in WITHOUT_REFERENCE

    @property
    def beta(self) -> float:
        """β of the objective `prefer`."""
        return (2.0 if self.prefer_form == "simpo" else 0.1) if self.prefer_beta is None else self.prefer_beta

    @property
    def other_model(self) -> str | None:
        """Another model that training depends on; `base` is that model before training."""
        return self.prefer_reference if self.needs_reference else None

    @property
    def distils_both_ways(self) -> bool:
        """Whether the divergence pulls the original and the refined view towards each other, as in `d2e`."""
        known = not is_own(self.objective) and not spec_of(self.objective).trains_refined
        return known and "refined" in self.views

    def of_training(self) -> dict[str, Any]:
        """Return the options that decide the training; a sweep trains sections with equal results once."""
        if is_own(self.objective):
            return self.model_dump()
        name, ratio = self.objective, self.effective_alpha
        if name == "sft":
            name = "d2e"  # which is the same without views to subtract or to distil from
        used = {
            "kl_weight": "refined" in self.views,
            "kl_direction": self.distils_both_ways,
            "view_gradients": len(self.views) > 1,
        }
        options = [*(option for option, applies in used.items() if applies), *spec_of(name).options]
        values = {option: getattr(self, option) for option in options}
        return {"objective": name, "alpha": ratio, "views": self.views, **values}
