"""The example for torchtitan: its Trainer trains our model on CPUs with gloo, two processes compute what one does, and a run goes on."""

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
if importlib.util.find_spec("torchtitan") is None:
    pytest.skip("torchtitan is not installed: pip install torchtitan", allow_module_level=True)
pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "torch" / "train_torchtitan.py"
LINE = re.compile(r"step: +(\d+) +loss: +([0-9.]+) +grad_norm: +([0-9.]+)")


def run(folder, processes, *more):
    """Of each step that one process told: its number, the loss, the norm of the gradient."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    arguments = ["--dataloader.dataset-path", str(folder / "text.txt"), "--dump-folder", str(folder / f"out{processes}"), "--training.steps", "6",
                 "--training.seq-len", "32", "--training.local-batch-size", str(4 // processes), "--metrics.disable-color-printing", *more]
    environment = {**os.environ, "WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "CUDA_VISIBLE_DEVICES": "",
                   "OMP_NUM_THREADS": "1"}
    environment.pop("LOG_RANK", None)
    started = [subprocess.Popen([sys.executable, str(EXAMPLE), *arguments], env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                                cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank in range(processes)]
    said = [one.communicate()[0] for one in started]
    assert all(one.returncode == 0 for one in started), said[0][-3000:]
    return [(int(step), float(loss), float(norm)) for step, loss, norm in LINE.findall(said[0])]


def test_torchtitan_trains(tmp_path):
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 40)
    alone = run(tmp_path, 1, "--checkpoint.enable", "--checkpoint.interval", "3")
    assert [step for step, _, _ in alone] == [1, 2, 3, 4, 5, 6] and alone[-1][1] < alone[0][1] - 0.1
    two = run(tmp_path, 2)
    assert [step for step, _, _ in two] == [1, 2, 3, 4, 5, 6]
    for one, other in zip(alone, two):
        assert other[1:] == pytest.approx(one[1:], rel=1e-4)
    shutil.rmtree(tmp_path / "out1" / "checkpoint" / "step-6")
    on = run(tmp_path, 1, "--checkpoint.enable", "--checkpoint.interval", "3")
    assert [step for step, _, _ in on] == [4, 5, 6]
    for one, other in zip(alone[3:], on):
        assert other[1:] == pytest.approx(one[1:], rel=1e-4)
