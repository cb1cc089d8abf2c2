"""The example, a few steps of it, and the bench of host time, a few calls of it."""

import importlib.util
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def test_a_new_rule_learns_beside_gdn(tmp_path):
    spec = importlib.util.spec_from_file_location("new_rule", os.path.join(FOLDER, "examples", "new_rule.py"))
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    curves, shares = example.main(["--steps", "12", "--pairs", "4", "--plot", str(tmp_path / "loss.png")])
    assert set(curves) == {"gdn", "mine"} and all(0 <= share <= 1 for share in shares.values())
    for losses in curves.values():
        assert len(losses) == 12 and losses[-1] < losses[0]
    if importlib.util.find_spec("matplotlib"):
        assert (tmp_path / "loss.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.slow
def test_host_time_runs():
    done = subprocess.run([sys.executable, os.path.join(FOLDER, "bench", "host_time.py"), "--blocks", "2", "--calls", "5"],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split("  ")[0] for line in done.stdout.splitlines()[1:]] == [
        "empty function", "lean call", "full call", "operator", "operator with states", "recurrence", "recurrence with states",
        "fla.chunk_gated_delta_rule", "the same, raw inputs"]
