"""`d2e demo`: a Gradio page with a form, a slider for α, three answers and a summary.

Everything else works without Gradio. The page contacts only its own server: it uses the system's fonts, and Gradio's
analytics are switched off before it is imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from d2e_sft.util.errors import UserError
from eval.pages.demo.answering import Answerer, Answers, DemoModel, load_demo_model
from eval.pages.demo.question import CHOICE, Question, examples_for, labels_of, without_stale_answer
from eval.pages.demo.summary import Opening, find_opening, summarise
from eval.run.options import EvalOptions

INSTALL = "pip install 'd2e-sft[demo]'"
_STEP, _UPPER, _MOST_TOKENS = 0.05, 1.5, 512
_FORMAT_NAMES = {"qa": "free answer", "nli": "positive or negative", "scq": "one option", "mcq": "several options"}
_INTRODUCTION = """\
<h1>{model}</h1>
<p>Three answers to one question: with the context; debiased
(<var>z</var><sub>original</sub> − α · <var>z</var><sub>imagined</sub>); and without the context, which shows the
habit.</p>"""


@dataclass(frozen=True)
class ServeOptions:
    """The examples of the page and its address, as options of `d2e demo`."""

    bench: str | None
    samples: int
    seed: int
    host: str
    port: int
    share: bool


def serve_demo(model: str, options: EvalOptions, served: ServeOptions, report: Callable[[str], object]) -> None:
    """Serve the page until it is interrupted; `report` prints its address.

    Raises:
        UserError: Gradio is not installed, the model or the examples cannot be read, or the port is taken.
    """
    gr = import_gradio()  # before minutes of loading
    examples = examples_for(model, served.bench, served.samples, served.seed)
    loaded = load_demo_model(model, options)
    page = build_page(loaded, examples)
    try:
        _, local, public = page.launch(
            server_name=served.host,
            server_port=served.port,
            share=served.share,
            prevent_thread_lock=True,
            **launch_options(gr),
        )
    except OSError as error:
        what = f"--host {served.host} --port {served.port}: cannot listen there ({error})"
        raise UserError(what, "choose another --port") from None
    report(f"open {public or local} (α = {loaded.alpha:g}; ctrl-C ends it)")
    page.block_thread()


def import_gradio() -> Any:
    """Gradio, with its analytics off; UserError if it is not installed."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    try:
        import gradio
    except ImportError as error:
        raise UserError(f"Gradio is not usable here ({error})", remedy=INSTALL) from error
    return gradio


def build_page(model: DemoModel, examples: Sequence[Question]) -> Any:
    """Build the page as `gradio.Blocks`, to be launched with `launch_options`; UserError without Gradio."""
    gr = import_gradio()
    answerer = Answerer(model)
    opening = find_opening(model, answerer, examples)
    with gr.Blocks(title=f"d2e demo · {model.name}", analytics_enabled=False) as page:
        gr.HTML(_INTRODUCTION.format(model=escape(model.name)), elem_classes="d2e-head")
        with gr.Row():
            with gr.Column(min_width=320):
                form = _form(gr, model, examples, opening.place)
                with gr.Row():
                    ask = gr.Button("Answer", variant="primary", elem_id="ask")
                    stop = gr.Button("Stop", visible=False, elem_id="stop")
            with gr.Column(min_width=320):
                answers = _answers(gr, model, examples[opening.place], opening)
        fields = ("example", "fmt", "context", "question", "options", "expected", "instruction", "alpha", "limit")
        asked = gr.on(
            [ask.click, form["question"].submit],
            _answering(gr, model, answerer, examples),
            inputs=[form[name] for name in fields],
            outputs=[*answers, form["expected"], ask, stop],
            concurrency_limit=1,
            # The default ignores a press while an answer is ending, such as just after Stop.
            trigger_mode="multiple",
            api_name="answer",
            show_progress="minimal",
        )
        ready = {"fn": lambda: _buttons(gr, answering=False), "outputs": [ask, stop], "api_visibility": "private"}
        asked.then(**ready)  # after an error, too
        stop.click(**ready, cancels=[asked])
    return page


def launch_options(gr: Any) -> dict[str, Any]:
    """Return arguments of `Blocks.launch` so that the page loads nothing from other servers and stores nothing."""
    fonts = ["system-ui", "sans-serif"], ["ui-monospace", "monospace"]
    off = dict.fromkeys(("run_history", "ssr_mode", "pwa", "mcp_server"), False)
    return {
        "theme": gr.themes.Default(font=fonts[0], font_mono=fonts[1]),
        "css": Path(__file__).with_name("demo.css").read_text(encoding="utf-8"),
        "footer_links": [],
        "quiet": True,
        **off,
    }


def _form(gr: Any, model: DemoModel, examples: Sequence[Question], place: int) -> dict[str, Any]:
    """The form's fields by name, filled with one of the examples."""
    first = examples[place]
    form: dict[str, Any] = {}
    names = [(name, fmt) for fmt, name in _FORMAT_NAMES.items() if fmt in model.prompt_set.zero_shot]
    labels = labels_of(examples)
    form["example"] = gr.Dropdown(
        list(zip(labels, range(len(labels)), strict=True)), value=place, label="Try an example", elem_id="example"
    )
    form["fmt"] = gr.Radio(names, value=first.fmt, label="Format", elem_id="format")
    form["context"] = gr.Textbox(first.context, label="Context", lines=5, max_lines=12, elem_id="context")
    form["question"] = gr.Textbox(first.question, label=_question_label(first.fmt), max_lines=4, elem_id="question")
    form["options"] = gr.Textbox(
        first.options, label="Options, one a line", lines=3, visible=first.fmt in CHOICE, elem_id="options"
    )
    upper = max(_UPPER, model.alpha)
    form["alpha"] = gr.Slider(
        0, upper, value=model.alpha, step=_STEP, label="α, how much of the habit is subtracted", elem_id="alpha"
    )
    form["limit"] = gr.Slider(
        1,
        max(_MOST_TOKENS, model.max_new_tokens),
        value=model.max_new_tokens,
        step=1,
        label="Longest answer, in tokens",
    )
    with gr.Accordion("Expected answer, instruction", open=False):
        form["expected"] = gr.Textbox(
            first.expected, label="Expected answer", info="Optional; to see which answer is right.", elem_id="expected"
        )
        form["instruction"] = gr.Textbox(
            "", label="Instruction", info="Empty: the one below.", lines=3, placeholder=_system(model, first.fmt)
        )

    def on_format(fmt: str) -> tuple[Any, ...]:
        question = gr.Textbox(label=_question_label(fmt))
        return question, gr.Textbox(visible=fmt in CHOICE), gr.Textbox(placeholder=_system(model, fmt))

    form["fmt"].change(
        on_format,
        inputs=form["fmt"],
        outputs=[form["question"], form["options"], form["instruction"]],
        api_visibility="private",
    )
    parts = [form[name] for name in ("fmt", "context", "question", "options", "expected")]
    texts = [(one.fmt, one.context, one.question, one.options, one.expected) for one in examples]
    form["example"].change(texts.__getitem__, inputs=form["example"], outputs=parts, api_visibility="private")
    return form


def _answers(gr: Any, model: DemoModel, question: Question, opening: Opening) -> list[Any]:
    alpha, said, told = model.alpha, opening.answers or Answers("", "", ""), ""
    if opening.answers is not None:
        told = summarise(question, model.prompt_set, said, alpha) + f"<p>{escape(opening.told)}</p>"

    def box(text: str, label: str, name: str, **layout: Any) -> Any:
        return gr.Textbox(text, label=label, lines=3, interactive=False, elem_id=name, **layout)

    with gr.Row():
        plain = box(said.plain, "Plain", "plain", min_width=200)
        debiased = box(said.debiased, _debiased_label(alpha), "debiased", min_width=200)
    imagined = box(said.imagined, "Without the context (imagined)", "imagined")
    summary = gr.HTML(told, elem_classes="d2e-summary", elem_id="summary")
    return [plain, debiased, imagined, summary]


def _answering(gr: Any, model: DemoModel, answerer: Answerer, examples: Sequence[Question]) -> Any:
    def answer(example: int, *fields: Any) -> Iterator[tuple[Any, ...]]:
        """Answer a question plainly, debiased, and without the context."""
        *typed, alpha, limit = fields
        asked = without_stale_answer(Question(*typed), examples[example])
        buttons = _buttons(gr, answering=True)
        try:
            for said in answerer.stream(asked, alpha, int(limit)):
                debiased = gr.Textbox(said.debiased, label=_debiased_label(alpha))
                told = summarise(asked, model.prompt_set, said, alpha) if said.done else ""
                yield said.plain, debiased, said.imagined, told, asked.expected, *buttons
        except UserError as error:
            raise gr.Error(" ".join(filter(None, [escape(error.message), escape(error.remedy or "")]))) from None

    return answer


def _buttons(gr: Any, *, answering: bool) -> tuple[Any, Any]:
    return gr.Button(interactive=not answering), gr.Button(visible=answering)


def _system(model: DemoModel, fmt: str) -> str:
    return next(prompt.system for name, prompt in model.prompt_set.zero_shot.items() if name == fmt)


def _question_label(fmt: str) -> str:
    return "Hypothesis" if fmt == "nli" else "Question"


def _debiased_label(alpha: float) -> str:
    return f"Debiased, α = {alpha:g}"
