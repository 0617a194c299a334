"""`d2e demo`: a page on the server of `d2e serve`, with a form, a slider for α, its answers and a summary.

The page loads nothing from elsewhere. Its only script sends the form and shows the answers as they grow.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from d2e_sft.server.context import RequestError
from d2e_sft.server.prompts import Prompts
from d2e_sft.server.queue import BatchQueue
from d2e_sft.server.start import ServeOptions, address, listening, run
from d2e_sft.util.errors import UserError
from d2e_sft.util.html.pages import render_page
from eval.pages.demo.answering import Answerer, Answers, DemoModel, load_demo_model
from eval.pages.demo.question import CHOICE, Question, labels_of, without_stale_answer
from eval.pages.demo.summary import Opening, find_opening, summarise
from eval.run.options import EvalOptions

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
    prompts = Prompts(model.loaded, model.decoding, model.prompt_set)
    return build_app(model.name, prompts, queue, max_body_bytes=where.max_body_bytes, more=more)


def page_of(model: DemoModel, examples: Sequence[Question], opening: Opening) -> str:
    """Return the page, with its first answers if there are any."""
    shown = None
    if opening.answers is not None:
        shown = _shown(model, examples[opening.place], opening.answers, model.alpha)
        shown["summary"] += f"<p>{escape(opening.told)}</p>" if opening.told else ""
    texts = [{name: value for name, value in asdict(one).items() if name != "instruction"} for one in examples]
    return render_page(
        Path(__file__).with_name("demo.html"),
        model=model.name,
        labels=labels_of(examples),
        opening=opening,
        formats={fmt: name for fmt, name in _FORMATS.items() if fmt in model.prompt_set.zero_shot},
        alpha=model.alpha,
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
    asked, alpha, limit = form
    shown: dict[str, Any] = _shown(model, asked, Answers(), alpha)
    try:
        async for said in answerer.stream(asked, alpha, limit):
            shown = _shown(model, asked, said, alpha)
            yield json.dumps(shown) + "\n"
    except UserError as error:
        message = escape(" ".join(filter(None, [error.message, error.remedy])))
        yield json.dumps({**shown, "summary": f'<p class="wrong">{message}</p>'}) + "\n"


def _shown(model: DemoModel, asked: Question, said: Answers, alpha: float) -> dict[str, Any]:
    summary = summarise(asked, model.prompt_set, said, alpha) if said.done else ""
    return {**asdict(said), "alpha": f"{alpha:g}", "expected": asked.expected, "summary": summary}
