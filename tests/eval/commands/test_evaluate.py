"""`d2e eval` refuses calls that make no sense, in one message, before anything is loaded or written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import refusal_of
from tests.factories import bench_row, bench_rows, save_bench
from tests.tiny import save_tiny_model

NOWHERE = "--base-url http://127.0.0.1:9/v1"
LIKELIHOOD = "--bench {bench} --answer likelihood"
REFUSALS = {
    # which benchmark
    "": "expected either --bench or --suite, got neither",
    "--bench b --suite ood": "expected either --bench or --suite, got both",
    "--bench {bench} --data d": "--data d with --bench PATH: it is for suites and systems",
    "--bench crep": "benchmark 'crep': no such file or folder, and no system or suite. Did you mean 'crepe'?",
    "--bench crep --set prompt=cot": "Did you mean 'crepe'?",
    "--bench piper": "Did you mean --suite 'piper'?",
    "--bench {bench} --demonstrations d": "--demonstrations with --setting zero_shot: its prompts show none",
    "--bench {bench} --setting few_shot --demonstrations nowhere": "neither a file nor a folder with",
    # which engine and processes
    "--bench {bench} --processes 2": "--processes 2: needs --launch",
    "--bench {bench} --launch zero3 --processes 2": "every process gets a whole model",
    "--bench {bench} --launch ddp": "add --processes N",
    "--bench {bench} --launch ddp --engine vllm": "use --tensor-parallel N",
    "--bench {bench} --tensor-parallel 2": "--tensor-parallel: not supported by --engine transformers",
    "--bench {bench} --concurrency 2": "--concurrency: not supported by --engine transformers",
    "--bench {bench} --engine vllm --batch-size 2": "--batch-size: not supported by --engine vllm",
    "--bench {bench} --engine vllm --base-url x": "--base-url: not supported by --engine vllm",
    "--bench {bench} --engine openai --dtype float32": "--dtype: not supported by --engine openai",
    "--bench {bench} --base-url nowhere": "expected http:// or https://",
    # decoding by an endpoint
    f"--bench {{bench}} {NOWHERE} --alpha 0.5": "--alpha 0.5 with --engine openai: an endpoint decodes plainly",
    f"--bench {{bench}} {NOWHERE} --decoder cad": "--decoder cad with --engine openai: an endpoint decodes plainly",
    f"--bench {{bench}} {NOWHERE} --plausibility 0.1": "--plausibility 0.1 with --engine openai: an endpoint",
    f"--bench {{bench}} {NOWHERE} --overlong truncate_context": "contexts cannot be cut to fit",
    # decoders
    "--bench {bench} --decoder adcad": "Did you mean 'adacad'?",
    "--bench {bench} --decoder plain --alpha 0.7": "alpha 0.7 with the decoder plain: it has no α",
    "--bench {bench} --decoder d2e:alpha=0.5 --alpha 0.7": "with the decoder d2e:alpha=0.5: it gives its own",
    "--bench {bench} --decoder d2e": "--decoder d2e: α is 0, as",
    "--bench {bench} --decoder cad --without-context": "--decoder cad with --without-context: it contrasts",
    "--bench {bench} --decoder json:dumps --engine vllm": "custom functions are not supported in vLLM",
    "--bench {bench} --decoder nowhere_at_all:f": "module 'nowhere_at_all' cannot be imported",
    "--bench {qa} --decoder cad": "none of the 1 samples has a context; expected plain",
    # several decoders
    "--bench {bench} --out {bench}2": "2 folders (--out) for 1 decoders; expected one",
    "--bench {bench} --decoder plain --decoder cad --decoder adacad --out b": "2 folders (--out) for 3 decoders",
    "--bench {bench} --decoder cad --decoder cad": "1 folders (--out) for 2 decoders",
    "--bench {bench} --decoder plain --decoder cad --alpha 0.5": "belongs into the decoder",
    "--bench {bench} --decoder plain --decoder cad --engine vllm": "only the engine in this process",
    "--bench {bench} --decoder plain --decoder cad --without-context": "leaves nothing to contrast",
    # options by likelihood
    f"{LIKELIHOOD} --setting cot": "--setting cot with --answer likelihood",
    f"{LIKELIHOOD} --max-new-tokens 9": "--max-new-tokens 9 with --answer likelihood",
    f"{LIKELIHOOD} --compile": "--compile with --answer likelihood",
    f"{LIKELIHOOD} --alpha 0.5 --plausibility 0.1": "--plausibility 0.1 with --answer likelihood",
    f"{LIKELIHOOD} --alpha 0.5 --engine vllm": "vLLM only gives the log-probabilities of its own distribution",
    "--bench {bench} --normalise tokens": "--normalise with --answer generate: it concerns options by likelihood",
    f"--bench {{bench}} {NOWHERE} --tokenizer x": "--tokenizer with --answer generate: it concerns options",
    "--bench wiqa --answer likelihood": "--answer likelihood with --bench wiqa",
    "--bench {qa} --answer likelihood": "all 1 rows ask for free text (qa)",
    f"{LIKELIHOOD} {NOWHERE} --tokenizer no/such-folder": "there is no tokenizer 'no/such-folder'",
    f"{LIKELIHOOD} {NOWHERE} --tokenizer {{t5}}": "of an encoder-decoder; expected a causal model's",
}


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("world")
    return {
        "bench": save_bench(folder / "bench", bench_rows(2)),
        "qa": save_bench(folder / "qa", [bench_row(0, context="")]),
        "t5": save_tiny_model(folder / "t5", "t5"),
        "model": save_tiny_model(folder / "model"),
    }


@pytest.mark.parametrize("call", REFUSALS)
def test_a_call_that_makes_no_sense_is_refused(
    names: dict[str, Path],
    tmp_path: Path,
    call: str,
    judge_environment: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("d2e_sft.train.launch.accelerators", lambda: 0)
    arguments = call.format(**names).split()
    error = refusal_of("eval", names["model"], "--out", tmp_path / "run", *arguments)
    assert REFUSALS[call] in error
    assert error.count("error:") == 1
    assert not list(tmp_path.iterdir())
