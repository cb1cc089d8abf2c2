"""Several processes: FSDP2, DDP and heads divided over processes compute what one process does, on CPUs with gloo."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.slow
if not torch.distributed.is_available():
    pytest.skip("this PyTorch is built without torch.distributed", allow_module_level=True)

import deltarule
from deltarule.torch import Mixer
from deltarule.torch.parallel import shard_heads

ROOT = Path(__file__).parents[2]
COMPOSED = '{"base": "kda", "rows": [{"read": "key", "write": "key", "gain": "implicit", "value": "gain_v"}]}'


# ---- the example -----------------------------------------------------------------------------------------------------------


def train(tmp_path, processes, out, steps, *more):
    """The losses of examples/torch/train_fsdp.py, step by step."""
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 40)
    made = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes),
                           str(ROOT / "examples" / "torch" / "train_fsdp.py"), "--corpus", str(tmp_path / "text.txt"), "--out",
                           str(tmp_path / out), "--steps", str(steps), "--hidden", "32", "--seq-len", "32", "--batch", "4", *more],
                          capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
    assert made.returncode == 0, made.stderr[-3000:]
    return [json.loads(line)["loss"] for line in made.stdout.splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Six steps of one process without any of it."""
    losses = train(tmp_path_factory.mktemp("alone"), 1, "one", 6, "--parallel", "ddp", "--checkpoint", "none")
    assert losses[-1] < losses[0] - 0.1
    return losses


@pytest.mark.parametrize("parallel", ["fsdp", "ddp", "heads"])
def test_two_are_one(parallel, alone, tmp_path):
    assert train(tmp_path, 2, "two", 6, "--parallel", parallel) == pytest.approx(alone, rel=1e-4)


@pytest.mark.parametrize("parallel", ["fsdp", "heads"])
def test_goes_on_on_two(parallel, alone, tmp_path):
    some = train(tmp_path, 1, "part", 3, "--parallel", parallel)
    assert some + train(tmp_path, 2, "part", 6, "--parallel", parallel) == pytest.approx(alone, rel=1e-4)


def test_composition_in_half_precision(tmp_path):
    runs = [train(tmp_path, n, str(n), 6, "--parallel", "fsdp", "--dtype", "bfloat16", "--rule", COMPOSED) for n in (1, 2)]
    assert runs[1] == pytest.approx(runs[0], rel=2e-3) and runs[0][-1] < runs[0][0] - 0.1


def test_refusals(tmp_path):
    with pytest.raises(AssertionError, match="a batch of 4 sequences cannot be divided by 3 processes"):
        train(tmp_path, 3, "three", 1)
    with pytest.raises(AssertionError, match="has 1800 bytes: a sequence of 4000 needs more"):
        train(tmp_path, 1, "long", 1, "--seq-len", "4000")


# ---- heads of every rule ---------------------------------------------------------------------------------------------------


def divide(rank, folder):
    """A process: each rule's mixer, whole and divided, gives the same y and the same gradients."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
    torch.set_num_threads(1)
    told = {}
    for rule in (*deltarule.rules(), deltarule.Rule(json.loads(COMPOSED))):
        torch.manual_seed(3)
        mixer, x, weight = Mixer(rule, 32, 4, head_dim=8), torch.randn(2, 11, 32, requires_grad=True), torch.randn(2, 11, 32)
        with torch.no_grad():
            for one in mixer.parameters():
                one.add_(0.1 * torch.randn_like(one))
        y = mixer(x)
        exact = torch.autograd.grad((y * weight).sum(), [x, *mixer.parameters()])
        try:
            shard_heads(mixer, Mixer(rule, 32, 2, head_dim=8, device="meta"), mesh)
        except NotImplementedError as reason:
            told[rule.text] = str(reason)
            continue
        other = mixer(x)
        (other * weight).sum().backward()
        found = [other, x.grad, *(one.grad.full_tensor() for one in mixer.parameters())]
        told[rule.text] = max(((a - b).abs().max() / b.abs().max().clamp(min=1e-3)).item() for a, b in zip(found, [y, *exact]))
    if rank == 0:
        (Path(folder) / "told").write_text(json.dumps(told))
    torch.distributed.destroy_process_group()


def test_heads_of_every_rule(tmp_path):
    torch.multiprocessing.spawn(divide, (str(tmp_path),), nprocs=2)
    told = json.loads((tmp_path / "told").read_text())
    refused = {name for name, one in told.items() if isinstance(one, str)}
    print({name: one for name, one in told.items()})
    assert all("not divided" in told[name] for name in refused)
    assert {"gdn", "kda", "delta_net", "gla", "rwkv7", "mesanet", "pgdn"} <= set(told) - refused
    assert all(told[name] < 2e-3 for name in set(told) - refused)
