"""Tasks of lm-eval give the rows, answers and accuracies of `d2e eval`."""

from pathlib import Path
from typing import Any

import pytest
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from lm_eval.utils import simple_parse_args_string

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample, write_samples
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding import DecodingConfig, PromptPair, sample_pairs, stop_token_ids
from d2e_sft.model.loading import load_model
from d2e_sft.util.errors import UserError
from eval.commands.lm_eval import TASKS
from eval.lm_eval.model import D2ELM, ContinuationEncoder
from eval.lm_eval.tasks.rows import document, load
from eval.score.scoring import score_output
from tests.command import d2e
from tests.d2e_sft.decoding.pairs import generated
from tests.eval.lm_eval.rows import ROWS, save_rows
from tests.factories import predictions, scores_of
from tests.tiny import make_sample, save_tiny_model, tiny_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_model(tmp_path_factory.mktemp("model"), seed=1))


@pytest.fixture(scope="module")
def model(folder: str) -> D2ELM:
    return D2ELM(folder, alpha=0.5, batch_size=2)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return save_rows(tmp_path)


def _evaluate(model: D2ELM, data: Path, tasks: list[str], **options: Any) -> dict[str, Any]:
    results = simple_evaluate(
        model=model,
        tasks=tasks,
        task_manager=TaskManager(include_path=str(TASKS), include_defaults=False, metadata={"data": str(data)}),
        apply_chat_template=True,
        bootstrap_iters=0,
        **options,
    )
    return results


@pytest.mark.parametrize("decoder", ["d2e:alpha=0.5", "adacad:floor=2"])
def test_answers_and_scores_are_those_of_this_projects_own_decoding(folder: str, data: Path, decoder: str) -> None:
    model = D2ELM(folder, decoder=decoder, batch_size=2)
    results = _evaluate(model, data, list(ROWS), gen_kwargs="max_gen_toks=12")
    prompts = load_prompt_set("default")
    encoder = ViewEncoder(model.tokenizer, prompts, ("original", "imagined"))
    for task in ROWS:
        logged = results["samples"][task]
        samples = [EventSample.model_validate({n: s["doc"][n] for n in EventSample.model_fields if n in s["doc"]})
                   for s in logged]  # fmt: skip
        expected = generated(
            model.model,
            sample_pairs(encoder, samples),
            DecodingConfig(decoder=decoder, max_new_tokens=12),
            stop_ids=stop_token_ids(model.model, encoder.end_of_turn),
        )
        texts = [model.tokenizer.decode(answer, skip_special_tokens=True) for answer in expected]
        assert [sample["resps"][0][0] for sample in logged] == texts
        assert len(set(texts)) > 1
        f1 = [score_output(s, text, prompts.marker(s.format)).f1 for s, text in zip(samples, texts, strict=True)]
        assert results["results"][task]["f1,none"] == pytest.approx(sum(f1) / len(f1), abs=1e-9)


def test_an_imagined_few_shot_prompt_lacks_one_context(
    model: D2ELM, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str]] = []

    def watch(requests: Any, **_: Any) -> list[str]:
        seen.extend((request.args[0], model._imagined(request)) for request in requests)
        return ["x"] * len(requests)

    monkeypatch.setattr(model, "generate_until", watch)
    _evaluate(model, data, ["piper_temporal_tempreason"], num_fewshot=3, fewshot_as_multiturn=True)
    assert len(seen) == 4
    for original, imagined in seen:
        assert original.count("Context: ") == 4
        assert imagined.count("Context: ") == 3
        assert original.count("<|assistant|>") == imagined.count("<|assistant|>") == 4
        before, _, after = original.rpartition("Context: ")
        assert imagined == before + after[after.index("Question: ") :]


def _ask(model: D2ELM, prompt: str = "Why did it rain?", doc: dict[str, str] | None = None, **options: Any) -> str:
    """The answer to a request whose document does not know its context."""
    [answer] = model.generate_until([Instance("generate_until", doc or {}, (prompt, options), 0)])
    return answer


@pytest.mark.parametrize("doc", [{}, {"prompt": " ", "prompt_without_context": ""}])
@pytest.mark.parametrize("repeated", [1, 90])
def test_a_document_that_does_not_know_its_context_is_decoded_plainly(
    model: D2ELM, doc: dict[str, str], repeated: int, caplog: pytest.LogCaptureFixture
) -> None:
    answer = _ask(model, "Why did it rain?" * repeated, doc, max_gen_toks=5)
    prompt = model.tokenizer("Why did it rain?" * repeated)["input_ids"][-(1024 - 5) :]
    assert ("1 of 1 prompts are too long for the model and were cut" in caplog.text) == (repeated > 1)
    stops = stop_token_ids(model.model, 1)
    [plain] = generated(model.model, [PromptPair(prompt)], DecodingConfig(alpha=0, max_new_tokens=5), stop_ids=stops)
    assert answer == model.tokenizer.decode(plain, skip_special_tokens=True)


def test_an_answer_ends_before_its_stop_text(model: D2ELM) -> None:
    free = _ask(model, max_gen_toks=12)
    stop = free[4:6]
    assert _ask(model, max_gen_toks=12, until=[stop]) == free[: free.index(stop)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"alfa": 0.5}, "--model_args alfa: unknown to model 'd2e'"),
        ({"batch_size": "auto"}, "--batch_size auto: expected a number"),
    ],
)
def test_wrong_model_arguments_are_named(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        D2ELM("builtin:smollm2-135m-instruct", **arguments)


def test_a_decoder_is_named_as_for_d2e_eval_its_options_apart_by_colons(folder: str) -> None:
    said = simple_parse_args_string(f"pretrained={folder},decoder=examples.decoders:coiecd:weight=3:ratio=2")
    assert D2ELM(**said).how == DecodingConfig(decoder="examples.decoders:coiecd:weight=3,ratio=2")
    assert D2ELM(folder).how == DecodingConfig(alpha=0.5)
    assert D2ELM(folder, alpha=0.2, decoder="d2e").how == DecodingConfig(alpha=0.2)
    with pytest.raises(UserError, match=r"alpha 0\.5 with the decoder cad"):
        D2ELM(folder, alpha=0.5, decoder="cad")


def test_all_fifteen_rows_are_in_the_group() -> None:
    manager = TaskManager(include_path=str(TASKS), include_defaults=False)
    names = [name for name in manager.all_subtasks if name.startswith("piper_")]
    with_options = [name for name in names if name.startswith("piper_choice_")]
    assert len(names) - len(with_options) == 15
    assert {name.replace("piper_choice_", "piper_") for name in with_options} < set(names)
    assert {"piper", "piper_choice"} <= set(manager.all_groups)


def test_choices_stand_behind_the_marker_and_gold_is_their_place() -> None:
    options, prompts = ["sun", "moon", "sea"], load_prompt_set("default")
    scq, mcq, nli, qa = (
        document(make_sample(1, **fields), prompts)
        for fields in (
            {"format": "scq", "options": options, "answers": ["moon"]},
            {"format": "mcq", "options": options, "answers": ["sea", "sun"]},
            {"format": "nli", "answers": ["negative"]},
            {},
        )
    )
    assert (scq["choices"], scq["gold"]) == (["(A) sun", "(B) moon", "(C) sea"], 1)
    assert f"{scq['marker']} {scq['choices'][scq['gold']]}" == scq["response"]
    assert (mcq["choices"], mcq["gold"], mcq["solved"]) == (scq["choices"], [0, 2], "(A) sun; (C) sea")
    assert (nli["choices"], nli["gold"]) == (["positive", "negative"], 1)
    assert (qa["choices"], qa["gold"]) == ([], None)


def test_a_folder_without_the_benchmark_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no test rows of tempreason"):
        load(dataset="tempreason", relation="temporal", data=str(tmp_path))


LONG = "It rained on the hill. " * 60
# Options that share a beginning, end in blanks, are empty or too long; and a prompt with one option.
PAIRS = [
    ("Why did it rain?", " because of clouds"),
    ("Why did it rain?", " because"),
    ("Why did it rain? ", "clouds"),
    ("", "clouds"),
    ("<|end|>Who came?", " nobody"),
    (LONG, " and then"),
    ("Who came?", " nobody"),
]


@pytest.fixture(scope="module")
def scored_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"), seed=1)


def requests(pairs: list[tuple[str, ...]], docs: list[dict[str, Any]] | None = None) -> list[Instance]:
    docs = docs or [{}] * len(pairs)
    return [
        Instance("loglikelihood", doc, pair, place) for place, (doc, pair) in enumerate(zip(docs, pairs, strict=True))
    ]


@pytest.fixture(scope="module")
def of_harness(scored_folder: Path) -> HFLM:
    return HFLM(pretrained=load_model(str(scored_folder)).model.eval(), tokenizer=tiny_tokenizer(), batch_size=3)


def test_plain_log_likelihoods_are_those_of_the_harness(scored_folder: Path, of_harness: HFLM) -> None:
    ours = D2ELM(str(scored_folder), alpha=0, batch_size=2).loglikelihood(requests(PAIRS), disable_tqdm=True)
    theirs = of_harness.loglikelihood(requests(PAIRS), disable_tqdm=True)
    for (mine, greedy), (expected, expected_greedy) in zip(ours, theirs, strict=True):
        assert mine == pytest.approx(expected, rel=1e-5)
        assert greedy == expected_greedy


def test_whole_texts_are_scored_in_the_harnesses_windows_and_always_plainly(
    scored_folder: Path, of_harness: HFLM, caplog: pytest.LogCaptureFixture
) -> None:
    texts: list[tuple[str, ...]] = [("It rained.",), (LONG,), ("a",)]
    assert len(LONG) > 1024, "more than one window"
    theirs = of_harness.loglikelihood_rolling(requests(texts), disable_tqdm=True)
    for alpha in (0.0, 0.5):
        ours = D2ELM(str(scored_folder), alpha=alpha).loglikelihood_rolling(requests(texts), disable_tqdm=True)
        assert ours == pytest.approx(theirs, rel=1e-5)
    assert "3 of 3 prompts have no context to remove" in caplog.text


def test_a_text_without_a_token_or_with_too_many_is_refused() -> None:
    encoder = ContinuationEncoder(tiny_tokenizer(), 8)
    with pytest.raises(UserError, match="log-likelihood of '': has no token"):
        encoder.encode("Why?", "Why?", "")
    with pytest.raises(UserError, match="has 9 tokens, and the model takes 8"):
        encoder.encode("Why?", "Why?", "123456789")


def test_a_prompt_that_is_too_long_loses_its_beginning_in_either_view() -> None:
    encoder = ContinuationEncoder(tiny_tokenizer(), 8)
    one = encoder.encode("0123456789", "56789", "ab")
    assert tiny_tokenizer().decode(one.original) == "3456789"
    assert tiny_tokenizer().decode(one.imagined) == "56789"
    assert one.truncated
    assert not encoder.encode("0123456", "0123456", "ab").truncated


# task → its rows' dataset, relation and format, the number of correct options, and the response form
CHOICES = {
    "piper_choice_causal_ecare": ("ecare", "causal", "scq", 1, "The correct option is:"),
    "piper_choice_temporal_mctaco": ("mctaco", "temporal", "mcq", 2, "The correct options are:"),
}


def test_piper_choice_gives_the_accuracies_of_d2e_eval(scored_folder: Path, tmp_path: Path) -> None:
    options = ["rain", "a long, long drought", "snow"]
    for split, count in (("train", 4), ("test", 7)):
        rows = [
            make_sample(i, dataset=dataset, relation=relation, format=kind, options=options, split=split,
                        id=f"{split}{i}", answers=(options * 2)[i % 3 :][:correct])
            for dataset, relation, kind, correct, _ in CHOICES.values()
            for i in range(count)
        ]  # fmt: skip
        write_samples(rows, tmp_path / f"{split}.parquet")
    out, name = tmp_path / "run", f"{tmp_path.name}-likelihood"
    common = ("--bench", tmp_path, "--out", out, "--answer", "likelihood", "--alpha", 0.5)
    assert d2e("eval", scored_folder, *common) == 0
    manager = TaskManager(include_path=str(TASKS), include_defaults=False, metadata={"data": str(tmp_path)})
    lm = D2ELM(str(scored_folder), alpha=0.5, batch_size=2)
    how: dict[str, Any] = {"task_manager": manager, "apply_chat_template": True, "bootstrap_iters": 0}
    results = simple_evaluate(model=lm, tasks=list(CHOICES), **how)
    shown = simple_evaluate(model=lm, tasks=list(CHOICES), num_fewshot=2, fewshot_as_multiturn=True, limit=1, **how)
    assert shown is not None
    groups = {group["dataset"]: group for group in scores_of(out, name)["groups"]}
    for task, (dataset, _, kind, _, form) in CHOICES.items():
        for theirs, ours in (("acc,none", "acc"), ("acc_norm,none", "acc_norm")):
            assert results["results"][task][theirs] == pytest.approx(groups[dataset][ours]["mean"])
        rows = [row for row in predictions(out, name) if row["dataset"] == dataset]
        for sample, row in zip(results["samples"][task], rows, strict=True):
            scored = [float(response[0][0]) for response in sample["resps"]]
            assert scored == pytest.approx([option["logprob"] for option in row["likelihoods"]], rel=1e-5)
        prompt = shown["samples"][task][0]["arguments"][0][0]
        assert prompt.count(f"{form} (") == 2
        assert prompt.count("; (") == (2 if kind == "mcq" else 0), "a demonstration names all the correct options"
        assert prompt.endswith(form)
