"""Parts of a sweep's file: decodings, values of axes, what is written, and what a dry run counts with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from d2e_sft.config.decoding import MAX_ALPHA, DecodingConfig, given_decoder
from d2e_sft.config.objectives import View
from d2e_sft.util.errors import UserError, did_you_mean
from eval.compare.paper_layouts import Layout

OUTPUT = "train.output_dir"


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Evaluation(Part):
    """How a point's model is decoded, where this differs from its recipe; None uses the recipe's.

    Attributes:
        alpha: the debias ratio of the decoder `d2e`.
        decoder: like `--decoder` of `d2e eval`.
        without_context: also decode without the contexts, and sort the wrong answers by rule like `d2e errors`.
        suite: another suite than the sweep's.
    """

    alpha: float | None = Field(default=None, ge=0, le=MAX_ALPHA)
    decoder: str | None = None
    plausibility: float = Field(default=0.0, ge=0, le=1)
    without_context: bool = False
    suite: str | None = None

    @model_validator(mode="after")
    def _is_a_decoding(self) -> Self:
        try:
            self.decoding(DecodingConfig())
        except UserError as error:
            raise ValueError(error.message) from None
        return self

    def decoding(self, default: DecodingConfig) -> DecodingConfig:
        """Return the recipe's decoding with these changes."""
        given = given_decoder(self.decoder, self.alpha, default.alpha)
        return replace(default, plausibility=self.plausibility, **given)


class Value(BaseModel):
    """What a value of an axis changes: keys of the recipe (the extra fields), and these.

    Attributes:
        build: further words of `d2e data build`.
        train: false scores the recipe's model without training.
        evaluations: added to the sweep's; the same suffix replaces the sweep's.
        not_with: axis → values that this one is not combined with.
    """

    model_config = ConfigDict(extra="allow")
    build: str = ""
    train: bool = True
    evaluations: dict[str, Evaluation] = Field(default_factory=dict)
    not_with: dict[str, list[str]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _changes_keys_of_a_recipe(self) -> Self:
        for key in self.overrides:
            if "." not in key:
                raise ValueError(f"{key}: expected section.key.{did_you_mean(key, list(Value.model_fields))}")
            if key == OUTPUT:
                raise ValueError(f"{key}: every training of a sweep has its own folder; set `out`")
        return self

    @property
    def overrides(self) -> dict[str, Any]:
        return self.model_extra or {}


class Probe(Part):
    """Compare accuracies during training; `reference` names one value per compared axis."""

    reference: dict[str, str] = Field(min_length=1)

    @field_validator("reference", mode="before")
    @classmethod
    def _names_are_texts(cls, reference: Any) -> Any:
        return {axis: str(value) for axis, value in reference.items()} if isinstance(reference, dict) else reference


class PaperTableOf(Part):
    """Points as rows of a paper's table, in a layout of `d2e table`; `*` in a name stands for any text."""

    layout: Layout
    points: list[str] = Field(min_length=1)


class ReportOf(Part):
    """Points on one HTML page, like `d2e report` makes it."""

    points: list[str] = Field(min_length=1)
    title: str | None = None
    no_texts: bool = False


class ExpectedEvaluation(Part):
    """Rows of a suite, and the mean tokens of a prompt, of the same without its context, and of an answer."""

    rows: int
    prompt: float
    without_context: float
    answer: float


class Expected(Part):
    """What `--dry-run` counts with: a machine, and the mean tokens of rows before they are built.

    Attributes:
        flops, bytes_per_s: Rates of one device; `utilisation` is the share of `flops` that is reached.
        rows: Training rows.
        tokens: View → tokens that it adds to a packed row. `answer` are those of an answer.
        suites: Suite → its rows.
        judge_dollars: What a paid judge of the training data costs.
    """

    devices: int
    device: str
    flops: float
    bytes_per_s: float
    utilisation: float = Field(gt=0, le=1)
    rows: int
    tokens: dict[View, float]
    answer: float
    suites: dict[str, ExpectedEvaluation]
    judge_dollars: float | None = None

    @property
    def on(self) -> str:
        """The machine, and what is assumed of it."""
        return f"{self.devices} × {self.device} at {self.utilisation:.0%} of its FLOP/s"
