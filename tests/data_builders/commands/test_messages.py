"""Refusals of `d2e data`: a call, and its message in test_messages.yaml."""

from __future__ import annotations

from pathlib import Path

from d2e_sft.data.sample import write_samples
from tests.command import refusal_of
from tests.data_builders.conftest import copy_raw_files
from tests.data_builders.nli_rows import nli
from tests.messages import messages_of

CALLS = """
build --suite piper --datasets boxes
build
build --suite ood --min-context-words 9 --max-context-words 3
build --datasets ecare --min-context-words 9 --max-context-words 3
build --suite piper-10k --min-context-words -1
build --suite piper --judge-jobs qualty
build --suite piper-10k --estimate
build --suite piper --judge local --judge-model m
build --suite piper --size 9
build --datasets ecare --size 9
build --datasets ecare --allow-shortfall
build --suite piper tempreason.test_file=x.json
build --suite piper tempreason.test_fil=x
build --datasets tracie tracie.answer_in_context=true
build --datasets tracie --raw no
build --datasets tracy
build --datasets ,
build --datasets boxes boxes.operation=2
build --datasets tracie boxes.boxes=2
build --datasets boxes boxes.boxes
build --datasets boxes boxes.boxes=1 boxes.boxes=2
build --datasets boxes refine.threshold=2
show data/nosuch
show tracei
show cider --split train
show cider --id cider-test-nobody
download wika
stats TMP/good.jsonl --tokenizer builtin:other
stats TMP/good.jsonl --tokenizer ./nowhere
stats TMP/good.jsonl --tokenizer nobody/nothing
stats TMP/good.jsonl --prompt-set other
stats TMP/missing.parquet
check TMP/broken.parquet --against TMP/good.jsonl
stats TMP/empty.jsonl
check TMP/folder --against TMP/good.jsonl
check TMP/good.jsonl
check TMP/good.jsonl --against TMP/folder
convert TMP/broken.parquet TMP/b.jsonl
convert TMP/missing.jsonl TMP/b.csv
export TMP/good.jsonl --format trk
export TMP/good.jsonl --format trl --views refind
export TMP/good.jsonl --format trl --prompt-set no
diagnose TMP/rows.csv
diagnose TMP/none.yaml
diagnose TMP --max-samples 5
diagnose TMP --dtype auto
push a/b/c --data TMP
push a/b --data TMP/nowhere
""".strip().splitlines()


def _message(tmp: Path, call: str) -> str:
    (tmp / "folder").mkdir()
    (tmp / "broken.parquet").write_text("no")
    (tmp / "empty.jsonl").touch()
    (tmp / "rows.csv").write_text("context,question,answer\n")
    write_samples([nli(1, "It rained.", "It was wet.", "positive")], tmp / "good.jsonl")
    verb, *words = call.replace("TMP", str(tmp)).split()
    words += ["--out", str(tmp / "out")] if verb == "build" else []
    words += ["--raw", str(copy_raw_files(tmp))] if verb in ("build", "show") and "--raw" not in words else []
    return " ".join(refusal_of("data", verb, *words).split())


test_message = messages_of(__file__, {call: lambda tmp, call=call: _message(tmp, call) for call in CALLS})
