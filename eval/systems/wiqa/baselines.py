"""The paper's trained baselines (section 4.1): AdaBoost on words, and an encoder such as BERT that ranks the answers.

The encoder reads `[CLS] paragraph [SEP] question [SEP] answer` for each of the three answers. Its head gives each a
logit, and the softmax over the three is trained by cross entropy. The paper also leaves the paragraph out.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from d2e_sft.util.errors import UserError
from eval.systems.wiqa.gold import LABELS, Label, WiqaQuestion

WORDS = "adaboost"
_STUMPS = 500
_OTHERS = "train other language models on WIQA by `d2e train`: docs/reference/systems/wiqa.md"
_READS = "wiqa_paragraph"  # in the configuration of a trained encoder: whether it reads the paragraph


def by_words(train: Sequence[WiqaQuestion], test: Sequence[WiqaQuestion], seed: int) -> list[Label]:
    """Answer by AdaBoost on the words of the cause and those of the effect, as two bags; ours has 500 stumps."""
    import numpy as np
    from sklearn.compose import make_column_transformer
    from sklearn.ensemble import AdaBoostClassifier
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.pipeline import make_pipeline

    bags = make_column_transformer(*((CountVectorizer(binary=True, token_pattern=r"\w+"), place) for place in (0, 1)))
    classifier = make_pipeline(bags, AdaBoostClassifier(n_estimators=_STUMPS, random_state=seed))
    known, new = (np.array([question.changes for question in questions], dtype=object) for questions in (train, test))
    classifier.fit(known, [LABELS.index(question.answer) for question in train])
    return [LABELS[place] for place in classifier.predict(new)]


def by_encoder(
    name: str,
    train: Sequence[WiqaQuestion],
    test: Sequence[WiqaQuestion],
    folder: Path,
    *,
    paragraph: bool = True,
    epochs: float = 3.0,
    batch_size: int = 32,
    learning_rate: float = 2e-5,
    seed: int = 0,
) -> list[Label]:
    """Answer by an encoder with a head for multiple choice, trained by transformers' Trainer and kept in the folder.

    Without training questions the model is used as it is. The paper does not say how it trains; the defaults are
    within BERT's own ranges for fine-tuning. UserError if the model does not fit.
    """
    import torch
    from transformers import DataCollatorForMultipleChoice, Trainer, TrainingArguments, set_seed

    set_seed(seed)  # a new head is drawn
    model, tokenizer = _load(name, paragraph, trained=not train)
    rows = [[_row(question, tokenizer, paragraph=paragraph) for question in questions] for questions in (train, test)]
    _check_lengths(model.config, [row for questions in rows for row in questions])
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(folder),
            num_train_epochs=epochs,
            per_device_train_batch_size=batch_size,
            per_device_eval_batch_size=batch_size,
            learning_rate=learning_rate,
            seed=seed,
            save_strategy="no",
            report_to="none",
            remove_unused_columns=False,
            dataloader_pin_memory=torch.cuda.is_available(),
        ),
        train_dataset=rows[0],
        data_collator=DataCollatorForMultipleChoice(tokenizer),
        processing_class=tokenizer,
    )
    if train:
        trainer.train()
        trainer.save_model()
    return [LABELS[place] for place in trainer.predict(rows[1]).predictions.argmax(axis=-1)]


def _load(name: str, paragraph: bool, *, trained: bool) -> tuple[Any, Any]:
    """Return the model and its tokenizer; a `trained` one must have weights for its head, and the same inputs."""
    from transformers import MODEL_FOR_MULTIPLE_CHOICE_MAPPING, AutoConfig, AutoModelForMultipleChoice, AutoTokenizer

    from d2e_sft.model.loading import loading
    from d2e_sft.model.storage.folder import pickles_allowed
    from d2e_sft.model.storage.hub import find_model

    with loading(name):
        source = find_model(name)
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
        if type(config) not in MODEL_FOR_MULTIPLE_CHOICE_MAPPING:
            raise UserError(f"model {name!r}: is a {config.model_type}; expected an encoder such as BERT", _OTHERS)
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        safely = {"use_safetensors": None if pickles_allowed() else True, "trust_remote_code": False}
        model, keys = AutoModelForMultipleChoice.from_pretrained(source, output_loading_info=True, **safely)
    if trained and keys["missing_keys"]:
        raise UserError(
            f"model {name!r}: has no trained head for multiple choice ({', '.join(sorted(keys['missing_keys']))})",
            "train it first: --train TRAIN.jsonl",
        )
    if tokenizer.sep_token is None:
        raise UserError(f"model {name!r}: its tokenizer has no separator; expected an encoder such as BERT")
    if trained and getattr(model.config, _READS, paragraph) != paragraph:
        has, remedy = ("without", "add") if paragraph else ("with", "drop")
        raise UserError(
            f"model {name!r}: was trained {has} the paragraph; expected the same questions",
            f"{remedy} --without-paragraph",
        )
    setattr(model.config, _READS, paragraph)
    return model, tokenizer


def _check_lengths(config: Any, rows: Sequence[dict[str, Any]]) -> None:
    longest = max(len(ids) for row in rows for ids in row["input_ids"])
    limit = getattr(config, "max_position_embeddings", None)
    if limit is not None and longest > limit:
        raise UserError(
            f"the longest question has {longest} tokens; expected at most the model's {limit} positions",
            "use a longer model, or leave the paragraph out: --without-paragraph",
        )


def _row(question: WiqaQuestion, tokenizer: Any, *, paragraph: bool) -> dict[str, Any]:
    """Return the three inputs of a question, one for each answer, and the place of the right one."""
    answers = [label.replace("_", " ") for label in LABELS]
    first, seconds = question.stem, answers
    if paragraph:
        first = " ".join(question.steps)
        seconds = [f"{question.stem} {tokenizer.sep_token} {answer}" for answer in answers]
    return {**tokenizer([first] * len(seconds), seconds), "labels": LABELS.index(question.answer)}
