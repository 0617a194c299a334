"""`d2e serve`."""

from importlib.util import find_spec
from typing import Any

import click

from d2e_sft.config.decoding import MAX_ALPHA, DecodingConfig, given_decoder
from d2e_sft.config.options import Number, address_options, decoder_option, reject_unused
from d2e_sft.data.sample import WORDED
from d2e_sft.model.storage.hub import check_model
from d2e_sft.util.errors import UserError
from d2e_sft.util.terminal import say


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("model")
@click.argument("engine_arguments", nargs=-1, type=click.UNPROCESSED, metavar="[VLLM OPTIONS]...")
@click.option(
    "--engine",
    type=click.Choice(["auto", "vllm", "transformers"]),
    default="auto",
    show_default=True,
    help="auto: vllm if it is installed, else transformers.",
)
@address_options(8000)
@click.option("--api-key", envvar="D2E_API_KEY", show_envvar=True, help="Bearer token that clients must send.")
@click.option("--alpha", type=Number(0, MAX_ALPHA), help="Default debias ratio. [default: as trained, else 0.5]")
@decoder_option("Default decoder", custom="")
@click.option(
    "--system", help="System message of requests that have none; `none`: no message. [default: as trained, else none]"
)
@click.option(
    "--served-model-name",
    multiple=True,
    metavar="NAME",
    help="Name of the model in requests; may be repeated. [default: MODEL]",
)
@click.option("--prompt-set", default=None, help="Wording of the context line. [default: as trained, else `default`]")
@click.option("--format", "fmt", type=click.Choice(WORDED), default="qa", show_default=True, help="Its format.")
@click.option(
    "--max-body-bytes", type=click.IntRange(min=1), default=4 * 1024 * 1024, show_default=True, help="Largest request."
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16", "auto"]),
    help="transformers: data type of the weights; auto: bfloat16 if it is fast here. [default: as in the recipe, else "
    "float32]",
)
@click.option(
    "--max-queue", type=click.IntRange(min=1), default=256, show_default=True, help="transformers: waiting requests."
)
@click.option(
    "--max-new-tokens",
    type=click.IntRange(min=1),
    default=1024,
    show_default=True,
    help="transformers: longest answer to a request without `max_tokens`.",
)
def serve(model: str, engine: str, engine_arguments: tuple[str, ...], fmt: Any, **options: Any) -> None:
    """Serve MODEL, OpenAI-compatible; chat requests with a context are decoded debiased.

    MODEL is a run folder, a checkpoint, an adapter, a Hub name or builtin:smollm2-135m-instruct. The engine vllm is
    for many requests on GPUs; options after MODEL are passed to it. The engine transformers needs no vLLM and decodes
    one batch at a time, on a CPU or one GPU. Options of this command come before MODEL. For a run, requests without a
    system message get that of its training, and an example request is printed at the start.

    \b
    Examples:
      d2e serve --engine transformers runs/d2e-mini
      d2e serve --port 8080 runs/d2e-mini --max-model-len 2048 --tensor-parallel-size 2
    """
    from d2e_sft.config.recipe import recipe_of, warn_if_trained_on_texts
    from d2e_sft.data.data_record import trained_wording, wording_of
    from d2e_sft.data.prompts import OWN
    from d2e_sft.server.start import ServeOptions, require_starlette

    if engine == "auto":
        engine = "transformers" if find_spec("vllm") is None else "vllm"
    reject_unused("--engine", engine, dict.fromkeys(("dtype", "max_queue", "max_new_tokens"), ("transformers",)))
    alpha, decoder, prompt_set = (options.pop(name) for name in ("alpha", "decoder", "prompt_set"))
    options["system"] = "" if options["system"] == "none" else options["system"]
    if engine == "vllm":
        from d2e_sft.vllm.engine import require_vllm

        require_vllm()
        from d2e_sft.vllm.pairing import check_decoder
        from d2e_sft.vllm.server.serve import serve as run
    else:
        if engine_arguments:
            raise UserError(
                f"got {' '.join(engine_arguments)} after MODEL: options of vLLM, and the engine is transformers",
                remedy="put options of d2e serve before MODEL; or install vLLM (pip install 'd2e-sft[serve]')",
            )
        require_starlette("--engine transformers", "serve-transformers")
        check_model(model)
        from d2e_sft.server.start import serve as run
    recipe = recipe_of(model)
    warn_if_trained_on_texts(recipe)
    default = DecodingConfig() if recipe is None else recipe.decoding
    decoding = DecodingConfig(**given_decoder(decoder, alpha, default.alpha))
    if engine == "vllm":
        check_decoder(decoding.decoder)
    if prompt_set is None:
        prompt_set = "default" if recipe is None else trained_wording(model, recipe.data.prompt_set)
    is_worded = recipe is not None and recipe.data.form == "chat" and wording_of(model) != [OWN]
    words = {"prompt_set": prompt_set, "format": fmt, "is_worded": is_worded}
    say(f"loading {model} …", err=True)
    run(model, ServeOptions(decoding=decoding, **words, engine_arguments=engine_arguments, **options))
