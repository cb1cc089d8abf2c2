"""Several processes: FSDP2, DDP and heads divided over processes compute what one process does, on CPUs with gloo."""

import importlib.util
import json
import os
import socket
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

EXAMPLE = Path(__file__).parents[2] / "examples" / "torch" / "train_fsdp.py"
COMPOSED = '{"base": "kda", "rows": [{"read": "key", "write": "key", "gain": "implicit", "value": "gain_v"}]}'
SIZES = ("--hidden", "32", "--seq-len", "32", "--batch", "4")
HALF = ("--dtype", "bfloat16", "--rule", COMPOSED)


def example():
    spec = importlib.util.spec_from_file_location("train_fsdp", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def meeting(rank, processes, port):
    """The environment that torchrun gives a process. Each group of processes meets at a port of its own: an earlier group's server may
    still be there."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(processes), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def train(folder, name, steps, *more):
    """The losses of the example's steps in this process."""
    return example().main(["--corpus", f"{folder}/text.txt", "--out", f"{folder}/{name}", "--steps", str(steps), *SIZES, *more])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("distributed")
    (made / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 40)
    return made


@pytest.fixture(scope="module")
def alone(folder):
    """What one process computes: six steps without any of it, the same in half precision, and three steps to go on with."""
    ports = iter(free_ports(4))
    meeting(0, 1, next(ports))
    losses = {"plain": train(folder, "alone", 6, "--parallel", "ddp", "--checkpoint", "none")}
    meeting(0, 1, next(ports))
    losses["half"] = train(folder, "alone-half", 6, *HALF)
    assert all(one[-1] < one[0] - 0.1 for one in losses.values())
    for parallel in ("fsdp", "heads"):
        meeting(0, 1, next(ports))
        losses[parallel] = train(folder, f"part-{parallel}", 3, "--parallel", parallel)
    return losses


def run_two(rank, folder, ports):
    """One of two processes: each way of training, runs of one process that go on, and every rule's heads divided."""
    torch.set_num_threads(1)
    runs = {parallel: (f"two-{parallel}", "--parallel", parallel) for parallel in ("fsdp", "ddp", "heads")}
    runs["half"] = ("two-half", *HALF)
    runs["compiled"] = ("two-compiled", "--compile")
    runs.update({f"on {parallel}": (f"part-{parallel}", "--parallel", parallel) for parallel in ("fsdp", "heads")})
    told = {}
    for port, (name, (out, *more)) in zip(ports, runs.items()):
        meeting(rank, 2, port)
        told[name] = train(folder, out, 6, *more)
    meeting(rank, 2, ports[-1])
    told["rules"] = divided_rules()
    if rank == 0:
        (Path(folder) / "told").write_text(json.dumps(told))


def divided_rules():
    """Of each rule the largest error of y and of all gradients when its mixer's heads are divided, or why they are not."""
    torch.distributed.init_process_group("gloo")
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
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
        least = 1e-3 * max(one.abs().max() for one in exact)
        told[rule.text] = max(((a - b).abs().max() / b.abs().max().clamp(min=least)).item() for a, b in zip(found, [y, *exact]))
    with pytest.raises(ValueError, match="part has 4 and 4"):
        shard_heads(Mixer("gdn", 32, 4), Mixer("gdn", 32, 4, device="meta"), mesh)
    torch.distributed.destroy_process_group()
    return told


@pytest.fixture(scope="module")
def two(folder, alone):
    torch.multiprocessing.spawn(run_two, (str(folder), free_ports(8)), nprocs=2)
    return json.loads((folder / "told").read_text())


@pytest.mark.parametrize("parallel", ["fsdp", "ddp", "heads", "compiled"])
def test_two_are_one(parallel, alone, two):
    assert two[parallel] == pytest.approx(alone["plain"], rel=1e-4)


@pytest.mark.parametrize("parallel", ["fsdp", "heads"])
def test_goes_on_on_two(parallel, alone, two):
    assert alone[parallel] + two[f"on {parallel}"] == pytest.approx(alone["plain"], rel=1e-4)


def test_composition_in_half_precision(alone, two):
    assert two["half"] == pytest.approx(alone["half"], rel=2e-3)


def test_heads_of_every_rule(two):
    refused = {name: one for name, one in two["rules"].items() if isinstance(one, str)}
    print(two["rules"])
    assert all("not divided" in one for one in refused.values())
    assert {"gdn", "kda", "delta_net", "gla", "rwkv7", "mesanet", "pgdn"} <= set(two["rules"]) - set(refused)
    assert all(one < 1e-3 for name, one in two["rules"].items() if name not in refused)


def torchrun(folder, processes, *more):
    return subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), str(EXAMPLE),
                           "--corpus", f"{folder}/text.txt", "--out", f"{folder}/run", *SIZES, *more], capture_output=True, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)


def test_by_torchrun(folder, alone):
    made = torchrun(folder, 2, "--steps", "6", "--save-every", "0", "--log-every", "1")
    assert made.returncode == 0, made.stderr[-3000:]
    told = [json.loads(line) for line in made.stdout.splitlines() if line.startswith("{")]
    assert [one["step"] for one in told] == list(range(1, 7)) and all(one["tokens_per_second"] > 0 for one in told)
    assert [one["loss"] for one in told] == pytest.approx(alone["plain"], rel=1e-4)
    made = torchrun(folder, 3, "--steps", "1")
    assert made.returncode != 0 and "a batch of 4 sequences cannot be divided by 3 processes" in made.stderr
