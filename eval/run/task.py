"""A task: prompts that are decoded alike, as messages, and their form as token ids."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.config.recipe import View
from d2e_sft.data.chat_template import CUE, ChatEncoder, Continuation, Form, Messages, cut
from d2e_sft.data.prompts import PromptSet, Setting
from d2e_sft.data.sample import EventSample
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding.pairs import OptionScore, PromptPair, TokenPair
from d2e_sft.util.errors import UserError
from eval.score.predictions import Prediction, SampleKey, prediction_line
from eval.score.scoring import Normalise, score_likelihoods, score_output


@dataclass(frozen=True)
class Answer:
    """The output for the prompt at `index`; `truncated` if its context was cut to fit.

    `scores` are log-probability and number of tokens of each option, if these were scored and nothing was generated.
    `seconds` are the time since the answer before, if the engine decodes one batch after another.
    """

    index: int
    output: str
    truncated: bool = False
    scores: list[tuple[float, int]] | None = None
    seconds: float | None = None

    def line(self) -> dict[str, Any]:
        """The answer as JSON, without empty scores or seconds."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class TaskItem:
    """What a task asks: one prompt with and without its context, as messages up to the answer.

    Attributes:
        dataset, id: The prompt's key, unique in its task; results are kept under it.
        imagined: The same turns without the context.
        group: Conversations in a group share a prefix.
        options: Possible answers, where options are scored.
        relation: Times are recorded by relation; empty for none.
    """

    dataset: str
    id: str
    messages: Messages
    imagined: Messages
    group: Hashable = ""
    options: tuple[str, ...] = ()
    relation: str = ""

    @property
    def label(self) -> str:
        return f"sample {self.id!r} of {self.dataset!r}"

    def shaped(self, form: Form, style: Continuation) -> Self:
        """Return the conversation in another form, with and without its context."""
        views = [style.shaped(messages, form) for messages in (self.messages, self.imagined)]
        return replace(self, messages=views[0], imagined=views[1])


@dataclass(frozen=True, kw_only=True)
class Task:
    """Conversations that are decoded alike, in one pass.

    Attributes:
        name: Label of the progress bar.
        likelihood: Score the options instead of generating.
        without_context: Answer the imagined prompts, plainly.
        as_text: The prompts are texts that the model continues, without its chat template.
        about: Which prompts they are, for the fingerprint.
    """

    conversations: Sequence[TaskItem]
    decoding: DecodingConfig
    name: str = ""
    likelihood: bool = False
    without_context: bool = False
    as_text: bool = False
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        decoder = f"α={self.decoding.alpha:g}" if self.decoding.decoder == "d2e" else self.decoding.decoder
        view = "without context" if self.without_context else decoder
        return ", ".join(part for part in (self.name, "options" if self.likelihood else "", view) if part)

    @property
    def view(self) -> View:
        return "imagined" if self.without_context else "original"

    @property
    def keys(self) -> list[SampleKey]:
        return [(chat.dataset, chat.id) for chat in self.conversations]

    def messages(self) -> list[Messages]:
        return [chat.imagined if self.without_context else chat.messages for chat in self.conversations]

    def answer(self, place: int, reply: str | Sequence[OptionScore], *, truncated: bool) -> Answer:
        """The journal's entry for an output, up to a text that ends it, or for the scores of options."""
        if isinstance(reply, str):
            return Answer(place, cut(reply, self.decoding.stop_strings), truncated)
        conversation = self.conversations[place]
        for option, score in zip(conversation.options, reply, strict=True):
            if not math.isfinite(score.logprob):
                problem = f"the log-probability of option {option!r} is {score.logprob}"
                from d2e_sft.model.finite import non_finite_output  # imports torch, which scoring does not need

                raise non_finite_output(conversation.label, problem)
        return Answer(place, "", truncated, scores=[(score.logprob, score.tokens) for score in reply])

    def line(self, answer: Answer) -> str:
        """The answer's line in the finished file: JSON with `dataset`, `id`, `output`, and `likelihoods` if scored."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class SampleTask(Task):
    """Samples in the words of a prompt set; the finished file holds predictions.

    `truncate` cuts the ends of contexts that exceed the model; False: refuse them.
    """

    samples: Sequence[EventSample]
    wording: PromptSet
    truncate: bool = False
    setting: Setting = "zero_shot"
    normalise: Normalise = "none"

    def line(self, answer: Answer) -> str:
        """The scored answer; see `eval.score.predictions`."""
        return prediction_line(self.prediction(answer))

    def prediction(self, answer: Answer) -> Prediction:
        sample, wording = self.samples[answer.index], self.wording
        if self.likelihood:
            return score_likelihoods(sample, answer.scores or [], wording, self.normalise)
        marker, given = wording.marker(sample.format), wording.given(sample.format)
        return score_output(sample, answer.output, marker, self.setting, given=given)


def sample_task(
    samples: Sequence[EventSample], wording: PromptSet, decoding: DecodingConfig, **options: Any
) -> SampleTask:
    """The prompts of samples; those of one format, dataset and relation are a group. `options` are other fields."""
    needs_imagined = options.get("without_context") or decoding.needs_imagined
    conversations = [
        TaskItem(
            sample.dataset,
            sample.id,
            wording.messages(sample, "original"),
            wording.messages(sample, "imagined") if needs_imagined else [],
            group=(sample.format, sample.dataset, sample.relation),
            options=tuple(sample.candidates or sample.answers),  # those of `ViewEncoder.option_ids`
            relation=sample.relation,
        )
        for sample in samples
    ]
    return SampleTask(
        conversations=conversations,
        decoding=replace(decoding, stop_strings=wording.stops),
        as_text=wording.as_text,
        samples=samples,
        wording=wording,
        **options,
    )


def encode(
    task: Task, tokenizer: Any, *, encoder_decoder: bool = False, limit: int | None = None
) -> tuple[list[TokenPair], int]:
    """The task's prompts as token ids, fitted to the model, and the token that ends an answer.

    `limit` is the model's positions; those of a decoder-only model also hold the answer, or the longest option.
    UserError if the tokenizer has no chat template, an option has no token, or prompts exceed the model.
    """
    from d2e_sft.model.loading import check_answer_fits  # needs more packages than scoring does

    chat = ChatEncoder(tokenizer, encoder_decoder=encoder_decoder, as_text=task.as_text)
    originals = chat.ids(task.messages())
    imagined: Sequence[list[int] | None] = [None] * len(originals)
    if task.decoding.needs_imagined:
        imagined = chat.ids([item.imagined for item in task.conversations])
    options: Sequence[tuple[list[list[int]], int]] = [([], 0)] * len(originals)
    new_tokens = task.decoding.max_new_tokens
    if task.likelihood:
        options = _options(task, tokenizer, encoder_decoder=encoder_decoder)
        new_tokens = max(len(option) for choices, _ in options for option in choices)
    too_long: list[int] = []
    if limit is not None:
        if not encoder_decoder and not task.likelihood:
            check_answer_fits(limit, new_tokens)
        budget = limit - (0 if encoder_decoder else new_tokens)
        too_long = [place for place, prompt in enumerate(originals) if len(prompt) > budget]
        if isinstance(task, SampleTask) and task.truncate:
            encoder = ViewEncoder(tokenizer, task.wording, (task.view,), encoder_decoder=encoder_decoder)
            for place in too_long:
                originals[place] = encoder.prompt_ids(task.samples[place], task.view, max(budget, 0))
        _check_lengths(task, originals, budget, new_tokens)
    pairs: list[TokenPair] = [
        PromptPair(
            original, imagined[place], *options[place], group=item.group, name=item.label, truncated=place in too_long
        )
        for place, (item, original) in enumerate(zip(task.conversations, originals, strict=True))
    ]
    return pairs, chat.end_of_turn


def _options(task: Task, tokenizer: Any, *, encoder_decoder: bool) -> list[tuple[list[list[int]], int]]:
    """Options as token ids, and how many first tokens they share by their form."""
    if isinstance(task, SampleTask):
        encoder = ViewEncoder(tokenizer, task.wording, ("original",), encoder_decoder=encoder_decoder)
        encoded = [encoder.option_ids(sample) for sample in task.samples]
    else:
        # An encoder-decoder gets them with the end of the text, as in its training; a text is continued after a cue.
        lead = "" if encoder_decoder or not task.as_text else f"{CUE} "
        given = len(tokenizer(lead.rstrip(), add_special_tokens=False)["input_ids"])
        known = {
            choices: tokenizer([lead + option for option in choices], add_special_tokens=encoder_decoder)["input_ids"]
            for choices in {item.options for item in task.conversations}
        }
        encoded = [([tokens[given:] for tokens in known[item.options]], 0) for item in task.conversations]
    for conversation, (responses, given) in zip(task.conversations, encoded, strict=True):
        texts = tokenizer.batch_decode([tokens[given:] for tokens in responses])
        for option, text in zip(conversation.options, texts, strict=True):
            if not text.strip():
                raise UserError(
                    f"{conversation.label}: the tokenizer of {tokenizer.name_or_path!r} makes no token of option "
                    f"{option!r}, so there is nothing to score; expected at least one",
                    remedy="fix the row or leave it out, or generate the answer: --answer generate",
                )
    return encoded


def _check_lengths(task: Task, prompts: Sequence[list[int]], budget: int, new_tokens: int) -> None:
    over = [place for place, prompt in enumerate(prompts) if len(prompt) > budget]
    if not over:
        return
    longest = max(over, key=lambda place: len(prompts[place]))
    cut, remedy = "", "lower --max-new-tokens, show fewer or shorter examples, or use a model with a longer context"
    if isinstance(task, SampleTask) and task.truncate:
        cut = " even without their contexts"
    elif isinstance(task, SampleTask):
        remedy = f"cut the ends of contexts with --overlong truncate_context, {remedy}"
    raise UserError(
        f"{len(over)} of {len(prompts)} prompts exceed the model's context{cut}: prompts may have {budget} tokens "
        f"plus {new_tokens} new ones, and the longest, {task.conversations[longest].label}, has "
        f"{len(prompts[longest])}",
        remedy,
    )
