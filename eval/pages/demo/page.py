"""`d2e demo`: a page on the server of `d2e serve`, with a form, a slider for α, its answers and a summary.

Answers are decoded together and token by token: plain, without the context, and debiased above α = 0. The page loads
nothing from elsewhere. Its only script sends the form and shows the answers as they grow. Texts of models and visitors
are escaped.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

from d2e_sft.config.recipe import recipe_of
from d2e_sft.data.data_record import trained_wording
from d2e_sft.data.prompts import PromptSet, load_prompt_set
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding import DecodingConfig, stop_token_ids
from d2e_sft.decoding.pairs import TokenPair
from d2e_sft.model.loading import LoadedModel, load_to_decode, position_limit
from d2e_sft.server.openai import RequestError
from d2e_sft.server.prompts import Prompts
from d2e_sft.server.queue import BatchQueue, Prompt
from d2e_sft.server.start import ServeOptions, address, listening, run
from d2e_sft.util.errors import UserError
from d2e_sft.util.html.pages import render_page
from d2e_sft.util.progress import Progress
from eval.pages.demo.question import CHOICE, Question, labels_of, without_stale_answer
from eval.run.options import EvalOptions, resolve_options
from eval.run.task import encode, sample_task
from eval.score.predictions import Prediction
from eval.score.scoring import score_output

_DEFAULT_ALPHA = 0.5


@dataclass(frozen=True)
class Answers:
    """The answers so far; `cut` if the end of the context was cut off, `done` if all are complete."""

    plain: str = ""
    debiased: str = ""
    imagined: str = ""
    cut: bool = False
    done: bool = False


@dataclass(frozen=True)
class DemoModel:
    """A loaded model with the defaults of the page."""

    name: str
    loaded: LoadedModel
    prompt_set: PromptSet
    decoding: DecodingConfig
    alpha_is: str = ""  # where α comes from

    @property
    def alpha(self) -> float:
        """Where the slider starts: the given debias ratio, the run's own, or 0.5."""
        return self.decoding.alpha

    @property
    def max_new_tokens(self) -> int:
        return self.decoding.max_new_tokens


def load_demo_model(model: str, options: EvalOptions) -> DemoModel:
    recipe, alpha_is = recipe_of(model), "as --alpha says"
    if options.alpha is None and recipe is None:
        options, alpha_is = replace(options, alpha=_DEFAULT_ALPHA), "the usual value: this model has no recipe"
    elif options.alpha is None and recipe is not None:
        subtracts = recipe.decoding.alpha > 0
        alpha_is = f"the run's own value{'' if subtracts else ', since its training subtracted nothing'}"
    config = resolve_options(model, options)
    wording = load_prompt_set(options.prompt_set or trained_wording(model, config.prompt_set), config.form)
    loaded = load_to_decode(model, config.section, options.dtype)
    # A tokenizer that cannot make prompts is found now, not at the first question.
    ViewEncoder(loaded.tokenizer, wording, (), encoder_decoder=loaded.model.config.is_encoder_decoder)
    return DemoModel(model, loaded, wording, config.decoding, alpha_is)


class Answerer:
    def __init__(self, model: DemoModel, queue: BatchQueue) -> None:
        self._model, self._queue = model, queue

    async def stream(self, question: Question, alpha: float, max_new_tokens: int) -> AsyncGenerator[Answers, None]:
        """The answers after each new token; decoding ends when the iterator is closed.

        UserError if the question is incomplete, or too long for the model even without its context.
        """
        pair, end_of_turn = _prompts(self._model, question, max_new_tokens)
        assert pair.imagined is not None
        pairs = {
            "plain": replace(pair, imagined=None, alpha=0.0),
            "debiased": replace(pair, alpha=float(alpha)),
            "imagined": replace(pair, original=pair.imagined, imagined=None, alpha=0.0),
        }
        settings = (
            DecodingConfig(max_new_tokens=max_new_tokens),
            tuple(stop_token_ids(self._model.loaded.model, end_of_turn)),
        )
        if alpha == 0:
            del pairs["debiased"]  # it would be the plain one
        names, answers = list(pairs), Answers(cut=pair.truncated)
        async with aclosing(self._queue.answers([Prompt(view, *settings) for view in pairs.values()])) as pieces:
            async for piece in pieces:
                name = names[piece.index]
                answers = replace(answers, **{name: getattr(answers, name) + piece.text})
                yield answers
        yield replace(answers, done=True)

    def answer(self, question: Question, alpha: float, max_new_tokens: int) -> Answers:
        async def last() -> Answers:
            return [answers async for answers in self.stream(question, alpha, max_new_tokens)][-1]

        return asyncio.run(last())


def _prompts(model: DemoModel, question: Question, max_new_tokens: int) -> tuple[TokenPair, int]:
    """Both prompts as `d2e eval` makes them, with the end of a long context cut off, and the end-of-turn token."""
    config = model.loaded.model.config
    limit = position_limit(config)
    # The imagined prompt is answered too, whatever the ratio.
    decoding = DecodingConfig(alpha=1.0, max_new_tokens=max_new_tokens)
    task = sample_task([question.sample()], question.wording(model.prompt_set), decoding, truncate=True)
    try:
        [pair], end = encode(task, model.loaded.tokenizer, encoder_decoder=config.is_encoder_decoder, limit=limit)
    except UserError:
        raise UserError(
            f"The question is too long: even without its context it does not fit the model's {limit:,} tokens beside "
            f"{max_new_tokens:,} new ones.",
            "Shorten it, or ask for a shorter answer.",
        ) from None
    return pair, end


_GUESSED_WRONG = "✗ wrong, as expected of a guess"
_AT_ZERO = "At α = 0 nothing is subtracted. For a debiased answer, move the slider for α, and answer again."


def _parsed(question: Question, prompt_set: PromptSet, answers: Answers) -> list[Prediction]:
    sample = question.sample()
    marker, given = prompt_set.marker(sample.format), prompt_set.given(sample.format)
    texts = (answers.plain, answers.debiased, answers.imagined)
    return [score_output(sample, text, marker, given=given) for text in texts]


def summarise(question: Question, prompt_set: PromptSet, answers: Answers, alpha: float) -> str:
    """HTML with each parsed answer, whether it is right if that is known, and a verdict."""
    names = ("Plain", f"Debiased, α = {alpha:g}", "Without the context")
    predictions = dict(zip(names, _parsed(question, prompt_set, answers), strict=True))
    if alpha == 0:
        del predictions[names[1]]  # it was not decoded
    rows = []
    for name, prediction in predictions.items():
        marks = ("✗ not as expected", "✓ right") if name != names[2] else (_GUESSED_WRONG, "✓ right, by a guess")
        right = prediction.exact_match == 1
        mark = f"<span{' class=right' if right else ''}>{marks[right]}</span>"
        text = escape("; ".join(prediction.answer)) if prediction.parsed else "<em>no answer recognised</em>"
        rows.append(f"<dt>{escape(name)}</dt><dd>{text}{mark if question.is_answered else ''}</dd>")
    parts = [f'<dl class="d2e-read">{"".join(rows)}</dl>', f"<p>{escape(_verdict(*predictions.values()))}</p>"]
    if question.is_answered:
        parts.insert(1, f"<p>Expected: <strong>{escape('; '.join(question.sample().answers))}</strong></p>")
    if alpha == 0:
        parts.append(f"<p>{_AT_ZERO}</p>")
    if answers.cut:
        parts.append("<p>The context is too long for the model: its end was left out.</p>")
    return "".join(parts)


def differs(question: Question, prompt_set: PromptSet, answers: Answers) -> bool:
    plain, debiased, _ = _parsed(question, prompt_set, answers)
    return not plain.says_same(debiased.answer)


def _verdict(plain: Prediction, *others: Prediction) -> str:
    """What the answers show about the model's habit; the others are the debiased one, if any, and the imagined one."""
    if not all(prediction.parsed for prediction in (plain, *others)):
        return "An answer was not recognised: the model did not follow the form that the instruction asks for."
    debiased, imagined, paired = others[0], others[-1], len(others) > 1
    same, habit = plain.says_same(debiased.answer), plain.says_same(imagined.answer)
    if habit and same:
        unchanged = ", and debiasing at this α does not change it" if paired else ""
        return f"The answer is the same with and without the context{unchanged}."
    if habit:
        return (
            "The plain answer is the same without the context: it is the model's habit. "
            "With that habit subtracted, the answer is another."
        )
    if same or not paired:
        return f"The context changes the answer{', and debiasing at this α keeps it' if paired else ''}."
    if debiased.says_same(imagined.answer):
        return "The context changes the plain answer; the debiased one is the same as without the context."
    return "The context changes the answer, and debiasing changes it again."


@dataclass(frozen=True)
class Opening:
    """The index of the example that the page shows first, its answers if any, and how it was chosen."""

    place: int
    answers: Answers | None
    told: str


def find_opening(
    model: DemoModel, answerer: Answerer, examples: Sequence[Question], *, patience: float = 60.0
) -> Opening:
    """Answer the examples in order, up to the first whose plain and debiased answers differ.

    The page says how the example was chosen: it must not suggest that answers often differ. After `patience` seconds,
    no further example is tried. At α = 0 none can differ, so one is answered.
    """
    answered: dict[int, Answers] = {}
    end = time.monotonic() + patience
    setting = f"at α = {model.alpha:g}"
    for place, question in enumerate(Progress(examples, desc="first answers", unit="example")):
        if answered and time.monotonic() > end:
            break
        try:
            answers = answerer.answer(question, model.alpha, model.max_new_tokens)
        except UserError:  # too long for the model; reported when the visitor chooses it
            continue
        answered[place] = answers
        if model.alpha == 0:
            return Opening(place, answers, "")
        if differs(question, model.prompt_set, answers):
            tried = "example" if len(answered) == 1 else f"of {len(answered)} examples"
            return Opening(place, answers, f"The first {tried} tried whose two answers differ {setting}.")
    if not answered:
        return Opening(0, None, "")
    place = min(answered)
    note = f"In none of the {len(answered)} examples tried do the two answers differ {setting}; this is the first."
    return Opening(place, answered[place], note if len(answered) > 1 else f"Its two answers are the same {setting}.")


_FORMATS = {"qa": "free answer", "nli": "positive or negative", "scq": "one option", "mcq": "several options"}
_TYPED = ("fmt", "context", "question", "options", "expected", "instruction")
Form = tuple[Question, float, int]  # with α and the longest answer


def serve_demo(model: str, options: EvalOptions, examples: Sequence[Question], where: ServeOptions) -> None:
    """Serve the page until it is interrupted; UserError if the model cannot be loaded, or the port is taken."""
    with listening(where.host, where.port) as sock:
        loaded = load_demo_model(model, options)
        app = build_page(loaded, examples, where)
        run(app, sock, f"open http://{address(sock)}/ (α = {loaded.alpha:g}; ctrl-C ends it)")


def build_page(model: DemoModel, examples: Sequence[Question], where: ServeOptions) -> Any:
    """Return the server's app with the page, whose first example is answered here."""
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, StreamingResponse
    from starlette.routing import Route

    from d2e_sft.server.app import build_app

    queue = BatchQueue(model.loaded, where.max_queue)
    answerer = Answerer(model, queue)
    html = page_of(model, examples, find_opening(model, answerer, examples))

    async def page(request: Request) -> HTMLResponse:
        return HTMLResponse(html)

    async def answer(request: Request) -> StreamingResponse:
        form = read_form(await request.body(), examples)
        return StreamingResponse(answered(model, answerer, form), media_type="application/x-ndjson")

    more = [Route("/", page), Route("/answer", answer, methods=["POST"])]
    prompts = Prompts(model.loaded, model.prompt_set, replace(where, decoding=model.decoding))
    return build_app(model.name, prompts, queue, where, more=more)


def page_of(model: DemoModel, examples: Sequence[Question], opening: Opening) -> str:
    shown = None
    if opening.answers is not None:
        shown = _shown(model, examples[opening.place], opening.answers, model.alpha)
        shown["summary"] += f"<p>{escape(opening.told)}</p>" if opening.told else ""
    texts = [{name: value for name, value in asdict(example).items() if name != "instruction"} for example in examples]
    return render_page(
        Path(__file__).with_name("demo.html"),
        model=model.name,
        labels=labels_of(examples),
        opening=opening,
        formats={fmt: name for fmt, name in _FORMATS.items() if fmt in model.prompt_set.zero_shot},
        alpha=model.alpha,
        alpha_is=model.alpha_is,
        limit=model.max_new_tokens,
        data={
            "examples": texts,
            "choice": CHOICE,
            "instructions": {fmt: prompt.system for fmt, prompt in model.prompt_set.zero_shot.items()},
            "opening": shown,
        },
    )


def read_form(body: bytes, examples: Sequence[Question]) -> Form:
    """Read what the page sends; RequestError for anything else."""
    try:
        form = json.loads(body)
        typed = Question(**{name: str(form[name]) for name in _TYPED})
        return without_stale_answer(typed, examples[int(form["example"])]), float(form["alpha"]), int(form["limit"])
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise RequestError(f"not the page's form ({type(error).__name__}: {error})") from None


async def answered(model: DemoModel, answerer: Answerer, form: Form) -> AsyncIterator[str]:
    """Yield the answers to a form after each new token, as lines of JSON; the last says what is wrong, if anything."""
    question, alpha, limit = form
    shown: dict[str, Any] = _shown(model, question, Answers(), alpha)
    try:
        async for answers in answerer.stream(question, alpha, limit):
            shown = _shown(model, question, answers, alpha)
            yield json.dumps(shown) + "\n"
    except UserError as error:
        message = escape(" ".join(filter(None, [error.message, error.remedy])))
        yield json.dumps({**shown, "summary": f'<p class="wrong">{message}</p>'}) + "\n"


def _shown(model: DemoModel, question: Question, answers: Answers, alpha: float) -> dict[str, Any]:
    summary = summarise(question, model.prompt_set, answers, alpha) if answers.done else ""
    return {**asdict(answers), "alpha": f"{alpha:g}", "expected": question.expected, "summary": summary}
