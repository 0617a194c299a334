"""Options of a build, and those of datasets and refiner as KEY=VALUE."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.data.sample import read_samples
from data_builders.build.options import BuildOptions
from data_builders.build.run import build
from tests.command import refusal_of


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--suite", "piper", "--datasets", "boxes"], "expected either --datasets or --suite, got both"),
        ([], "expected either --datasets or --suite"),
        (["--suite", "ood", "--min-context-words", "9", "--max-context-words", "3"], "not used for suite ood"),
        (["--datasets", "ecare", "--min-context-words", "9", "--max-context-words", "3"], "is above --max-context"),
        (["--suite", "piper-10k", "--min-context-words", "-1"], "-1 is not in the range x>=0"),
        (["--suite", "piper", "--judge-jobs", "qualty"], "Did you mean 'quality'?"),
        (["--suite", "piper-10k", "--estimate"], "--estimate without a judge"),
        (["--suite", "piper", "--judge-jobs", ""], "--judge-jobs: got ''; expected some of quality"),
        (["--suite", "piper", "--judge", "local", "--judge-model", "m"], "--judge: not used for suite piper"),
        (["--suite", "piper", "--size", "9"], "--size: not used for suite piper"),
        (["--datasets", "ecare", "--size", "9"], "--size: only for suites with fixed ratios (piper-10k)"),
        (["--datasets", "ecare", "--allow-shortfall"], "--allow-shortfall: only for suites with"),
        (["--suite", "piper", "tempreason.test_file=x.json"], "expected one of test_l3.json, event-event_839.jsonl"),
        (["--suite", "piper", "tempreason.test_fil=x"], "Did you mean 'tempreason.test_file'?"),
        (["--datasets", "tracie", "tracie.answer_in_context=true"], "its answers are labels, which no context has"),
        (["--datasets", "tracie", "--raw", "no"], "d2e: error: --raw no: no such folder; expected a folder with"),
        (["--datasets", "tracy"], "unknown dataset 'tracy'"),
        (["--datasets", "tracy"], "Did you mean 'tracie'?"),
        (["--datasets", ","], "no dataset named"),
        (["--datasets", "boxes", "boxes.operation=2"], "unknown option 'boxes.operation'"),
        (["--datasets", "boxes", "boxes.operation=2"], "Did you mean 'boxes.operations'?"),
        (["--datasets", "tracie", "boxes.boxes=2"], "is for dataset 'boxes', which is not built"),
        (["--datasets", "boxes", "boxes.boxes"], "got option 'boxes.boxes'; expected KEY=VALUE"),
        (["--datasets", "boxes", "boxes.boxes=1", "boxes.boxes=2"], "option 'boxes.boxes' is given twice"),
        (["--datasets", "boxes", "refine.threshold=2"], "option of refine: threshold: got '2'"),
    ],
)
def test_wrong_options_are_one_clear_message(raw: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    assert message in refusal_of("data", "build", "--raw", raw, "--out", tmp_path / "out", *arguments)


def test_the_refiner_can_be_set(raw: Path, tmp_path: Path) -> None:
    words = {}
    for settings in (
        ("refine.max_share=1", "refine.threshold=0"),
        ("refine.max_share=0.1", "refine.keep_events=false"),
    ):
        build(BuildOptions(["tracie"], tmp_path / "out", raw, settings=settings, overwrite=True))
        samples = read_samples(tmp_path / "out/test.parquet")
        words[settings[0]] = sum(len((sample.refined_context or "").split()) for sample in samples)
    assert words["refine.max_share=0.1"] < words["refine.max_share=1"]
