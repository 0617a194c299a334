"""`d2e demo`: load a model, build its page, and serve it until somebody stops it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from d2e_sft.util.errors import UserError
from eval.pages.demo.answering import load_demo_model
from eval.pages.demo.examples import examples_for
from eval.pages.demo.page import build_page, import_gradio, launch_options


@dataclass(frozen=True)
class DemoOptions:
    """How a page is made and served; None is as the run's recipe says.

    Attributes:
        bench: where the examples come from; None is the run's own data.
        share: let Gradio make a public address, through its own servers.
    """

    alpha: float | None = None
    prompt_set: str | None = None
    max_new_tokens: int | None = None
    dtype: str | None = None
    bench: str | None = None
    samples: int = 8
    seed: int = 0
    host: str = "127.0.0.1"
    port: int = 7860
    share: bool = False


def serve_demo(model: str, options: DemoOptions, say: Callable[[str], object]) -> None:
    """Serve the page of a model; returns when it is interrupted.

    Raises:
        UserError: Gradio is not installed, the model or the examples cannot be read, or the port is taken.
    """
    gr = import_gradio()  # before minutes of loading
    examples = examples_for(model, options.bench, options.samples, options.seed)
    loaded = load_demo_model(
        model,
        alpha=options.alpha,
        prompt_set=options.prompt_set,
        max_new_tokens=options.max_new_tokens,
        dtype=options.dtype,
    )
    page = build_page(loaded, examples)
    try:
        _, local, public = page.launch(
            server_name=options.host,
            server_port=options.port,
            share=options.share,
            prevent_thread_lock=True,
            **launch_options(gr),
        )
    except OSError as error:
        raise UserError(
            f"--host {options.host} --port {options.port}: cannot be listened on ({error})", "choose another --port"
        ) from None
    say(f"open {public or local} (α = {loaded.alpha:g}; ctrl-C ends it)")
    page.block_thread()
