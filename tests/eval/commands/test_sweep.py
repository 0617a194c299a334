"""`d2e sweep` with a plan of named runs, and the plan of docs/evidence-piper.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import d2e

EVIDENCE = Path(__file__).parents[3] / "launch" / "evidence.yaml"

RECIPE = """
model: {name: tiny}
data: {train: train.jsonl}
train: {output_dir: unused}
"""


def written(folder: Path, text: str) -> str:
    (folder / "recipe.yaml").write_text(RECIPE)
    (folder / "plan.yaml").write_text(f"recipe: {folder}/recipe.yaml\nsuite: piper\n{text}")
    return str(folder / "plan.yaml")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sfd"], "'sfd': neither a run of the plan nor an override. Did you mean 'sft'"),
        (["d2e.alpha=1,2"], "holds for all runs of a plan; expected one value"),
    ],
)
def test_a_word_that_is_no_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert d2e("sweep", written(tmp_path, "runs: {sft: {}}"), *words) == 1
    assert said in capsys.readouterr().err


def test_the_plan_of_the_evidence_trains_and_scores_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("data/piper/manifest.json", "data/piper-640/train.parquet"):
        Path(file).parent.mkdir(parents=True)
        Path(file).touch()
    assert d2e("sweep", EVIDENCE, "--dry-run") == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "38 points: 16 trainings and 38 evaluations in runs/evidence"
    commands = [line.strip() for line in lines if line.startswith("  ")]
    assert len(commands) == len(set(commands)) == 64
    common = "--suite piper --max-samples 100 --max-new-tokens 48 --batch-size 100 --dtype bfloat16"
    assert f"d2e eval runs/evidence/sft {common} --alpha 0.5 --without-context" in commands
    assert f"d2e eval runs/evidence/d2e {common} --out runs/evidence/d2e-at-0.25 --alpha 0.25" in commands
    assert (
        f"d2e eval runs/evidence/sft {common} --out runs/evidence/sft-cut-0.1 --alpha 0.5 --plausibility 0.1"
        in commands
    )
    assert f"d2e eval runs/evidence/alpha-0.7 {common} --alpha 0.7" in commands
    assert f"d2e eval builtin:smollm2-135m-instruct {common} --out runs/evidence/base-plain --alpha 0.0" in commands
    assert sum(command.startswith("d2e errors") for command in commands) == 5
