"""What runs on a GPU machine imports nothing that such a machine may lack."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Dependencies of data building, evaluation, trackers and launchers.
ABSENT = (
    "datasets", "deepspeed", "trl", "bitsandbytes", "wandb", "trackio", "gguf", "sentencex", "datasketch", "sklearn",
    "scipy", "matplotlib", "starlette", "openai", "lm_eval", "vllm", "pyzipper", "bm25s", "data_builders", "eval",
)  # fmt: skip
PROGRAM = """
import sys
absent = {absent!r}

class Without:  # a finder that does not find what is absent
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in absent else self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
from d2e_sft.bench.gpu import bench_gpu
report = bench_gpu(file=None, seconds=120, rehearse=True)
assert [len(rows) for rows in report.rows.values()] == [4, 3, 3, 2, 2, 4] and not report.failed, report
rows = [row for rows in report.rows.values() for row in rows if "case" in row and "same" in row]
assert [row["same"] for row in rows] == 4 * [1], report
import tests.gpu.test_decoding, tests.gpu.test_memory, tests.gpu.test_parity, tests.gpu.test_training
assert not absent & {{name.partition(".")[0] for name in sys.modules}}
print(report.skipped)
"""


def test_the_bench_runs_and_the_tests_import_without_datasets_and_deepspeed() -> None:
    program = PROGRAM.format(absent=set(ABSENT))
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "trl is not installed" in done.stdout
