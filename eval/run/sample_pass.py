"""A pass over samples: `d2e eval` and `d2e predict` decode and score them in the same way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from d2e_sft.data.prompts import PromptSet
from d2e_sft.util.errors import UserError
from eval.run.benchmark import BenchmarkRows
from eval.run.demonstrations import Demonstrations
from eval.run.engines.engine import LoadEngine, identity_of, make_engine
from eval.run.fingerprint import common_fingerprint
from eval.run.journal import CompletedPass, DecodingPass
from eval.run.journal_files import Fingerprint, PassFiles
from eval.run.options import EvalConfig, warn_of_idle_options
from eval.run.processes import join_processes
from eval.run.task import sample_task
from eval.score.predictions import Prediction
from eval.score.scoring import score_likelihoods, score_output

T = TypeVar("T")


@dataclass(frozen=True)
class SamplePass:
    """The samples of one pass, and everything that is decided before a model is loaded.

    `rows.chosen` are decoded; few-shot prompts show `demonstrations`.
    """

    model: str
    config: EvalConfig
    rows: BenchmarkRows
    wording: PromptSet
    files: PassFiles
    demonstrations: Demonstrations | None = None

    @property
    def likelihood(self) -> bool:
        """Whether options are scored."""
        return self.config.options.answer == "likelihood"

    def warn(self) -> None:
        """Warn of options that have no effect; called in the main process before anything is decoded."""
        warn_of_idle_options(self.model, self.config)

    def run(self, write: Callable[[CompletedPass], T], load_engine: LoadEngine = make_engine) -> T:
        """Decode the samples; arguments, result and errors are as for `DecodingPass.run`.

        Raises UserError, too, for an unknown decoder, or one that contrasts while no sample has a context.
        """
        config, options = self.config, self.config.options
        if options.decoder is not None and config.decoding.needs_imagined:
            from d2e_sft.decoding.decoders import decoder_of  # imports torch

            if config.engine == "vllm":
                from d2e_sft.vllm.pairing import check_decoder

                check_decoder(options.decoder)
            decoder_of(config.decoding)
            if self.rows.chosen and not any(sample.context.strip() for sample in self.rows.chosen):
                raise UserError(
                    f"--decoder {options.decoder}: it contrasts the prompts with and without context, and none of the "
                    f"{len(self.rows.chosen)} samples has a context; expected plain",
                    remedy="drop --decoder, or evaluate on samples with contexts",
                )
        processes = join_processes(config.engine)
        processes.broadcast_from_main(self.warn)
        task = sample_task(
            self.rows.chosen,
            self.wording,
            config.decoding,
            likelihood=self.likelihood,
            without_context=options.without_context,
            truncate=options.overlong == "truncate_context",
        )
        return DecodingPass(
            task,
            self.files,
            processes,
            fingerprint=self.fingerprint,
            load_engine=lambda: load_engine(self.model, config, processes),
            overwrite=options.overwrite,
            accept_edited=options.accept_edited,
        ).run(write)

    def fingerprint(self) -> Fingerprint:
        """Everything that the outputs depend on, as flat JSON."""
        config, options, rows, shown = self.config, self.config.options, self.rows, self.demonstrations
        return {
            **common_fingerprint(identity_of(self.model, config), config, config.decoding),
            "setting": options.setting,
            "prompt_set": f"{self.wording.name}, sha256 {self.wording.digest()}",
            "demonstrations": None if shown is None else f"sha256 {shown.digest()}",
            "bench": f"sha256 {rows.sha256}, {len(rows.all)} rows",
            "subset": f"{config.max_samples} a group, seed {options.seed}" if rows.is_subset else None,
            "dtype": options.dtype,
            "temperature": options.endpoint.temperature if config.engine == "openai" else 0,
            "cut_to": options.vllm.get("max_model_len") if options.overlong == "truncate_context" else None,
        }

    def predictions(self, completed: CompletedPass) -> list[Prediction]:
        """The scored answers, in the order of the samples."""
        options, wording = self.config.options, self.wording
        pairs = zip(self.rows.chosen, completed.answers, strict=True)
        if self.likelihood:
            return [score_likelihoods(one, said.scores or [], wording, options.normalise) for one, said in pairs]
        how = {fmt: (wording.marker(fmt), wording.given(fmt)) for fmt in {one.format for one in self.rows.chosen}}
        return [
            score_output(one, said.output, how[one.format][0], options.setting, given=how[one.format][1])
            for one, said in pairs
        ]
