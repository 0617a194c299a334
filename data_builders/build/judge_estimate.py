"""What a judge would be asked for a build, before anything is asked."""

from __future__ import annotations

from d2e_sft.util.errors import UserError
from data_builders.build.benchmark import read_benchmark
from data_builders.build.compose import first_judged
from data_builders.build.options import JUDGE_JOBS, Options
from data_builders.build.reading import read_datasets
from data_builders.build.run import pick_sources
from data_builders.build.settings import parse_settings
from data_builders.quality.judged import quality_prompts
from data_builders.refine.judged import refine_prompts


def estimate_judge(options: Options) -> str:
    """What the judge would be asked, in one line a job; reads the raw files, asks and writes nothing.

    For a suite with ratios it counts the samples that are judged first. Those that the judge then refuses are
    replaced, so the true number is larger by the share that it refuses.

    Raises:
        UserError: no judge is named, or nothing can be read.
    """
    if options.judge is None:
        raise UserError(
            "--estimate without a judge; rules cost nothing", remedy="name one, for example --judge openai"
        )
    sources = pick_sources(options.datasets)
    reading = read_datasets(
        sources,
        ["train"],
        parse_settings(options.settings, sources),
        raw=options.raw,
        seed=options.seed,
        skip_bad=options.skip_bad,
    )
    samples = first_judged(options, reading, read_benchmark(options))
    prompts = {"quality": quality_prompts, "refine": refine_prompts}
    lines = [
        f"{job}: {options.judge.estimate(prompts[job](samples))}" for job in JUDGE_JOBS if job in options.judge_jobs
    ]
    return "\n".join(lines)
