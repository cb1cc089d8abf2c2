"""The tuning of Triton's kernels for programs that compare with flash-linear-attention: which configurations are compiled, and which is taken."""

import sys
from pathlib import Path

import pytest

autotuner = pytest.importorskip("triton.runtime.autotuner")
errors = pytest.importorskip("triton.runtime.errors")

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
import triton_tuning


def kernel(x, BLOCK):
    """Stands for a kernel's source."""


class Compiled:
    """Stands for a kernel: those of fewer than 4 warps need more memory than there is."""
    arg_names = ("x", "BLOCK")

    def __init__(self):
        self.fn, self.compiled, self.launched = kernel, [], []

    def run(self, *args, grid, warmup, num_warps, **_):
        (self.compiled if warmup else self.launched).append(num_warps)
        if not warmup and num_warps < 4:
            raise errors.OutOfResources(2, 1, "shared memory")


@pytest.mark.parametrize("part, parts, compiled, taken", [(0, 0, [], 4), (0, 2, [1, 4], 4), (1, 2, [2, 8], 8)])
def test_first_that_runs(monkeypatch, part, parts, compiled, taken):
    monkeypatch.setattr(autotuner.Autotuner, "prune_configs", autotuner.Autotuner.prune_configs)  # put back at the end
    triton_tuning.first_that_runs(part, parts)
    made = Compiled()
    tuner = autotuner.Autotuner(made, made.arg_names, [autotuner.Config({"BLOCK": 8}, num_warps=n) for n in (1, 2, 4, 8)], ["x"], None, None,
                                cache_results=True)
    for _ in range(2):
        tuner.run(3, grid=(1,), warmup=False)
    assert made.compiled == compiled
    assert tuner.best_config.num_warps == taken and made.launched[-2:] == [taken, taken]
    assert {n for n in made.launched if n >= 4} == {taken} and len(made.launched) <= 6  # nothing is measured
