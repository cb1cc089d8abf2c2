"""Trains a model of the library on the bytes of a file with PyTorch's own engine, on any number of processes:

    torchrun --nproc-per-node 2 examples/torch/train_fsdp.py --corpus FILE --rule gdn --steps 100 --out runs/fsdp

--parallel says how: `fsdp` shards the parameters of every layer (FSDP2), `ddp` keeps whole copies, `heads` divides the heads of every
mixer and the width of every feed-forward (tensor parallelism). Parameters, their gradients and the optimizer are float32; with --dtype
bfloat16 products and vectors are computed in bfloat16 under autocast, while A_log, dt_bias, norms and what becomes a gate or a decay
stay float32. Each layer is checkpointed selectively: the recurrence's outputs are kept, the rest is computed again. On GPUs each layer
of ours is compiled by torch.compile, which makes few kernels of all that stands between products; layers of flash-linear-attention have
kernels of their own for that. Losses stay on the device until they are told, every --log-every steps: nothing else waits for a GPU.

A run goes on where its folder ends, on more or fewer processes too: checkpoints are those of torch.distributed.checkpoint. Batches
depend on the step alone, so losses do not depend on the number of processes. --rule takes a JSON object for a composed rule, and
--classes fla the class of flash-linear-attention that computes the same, to compare with.
"""

import argparse
import functools
import glob
import json
import os
import shutil
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from deltarule.hf import DeltaruleConfig, DeltaruleForCausalLM
from deltarule.torch import Mixer, checkpoint_policy
from deltarule.torch.parallel import shard_heads


def options(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--corpus", required=True, metavar="FILE", help="whose bytes are the tokens")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of the checkpoint; a run in it goes on")
    parser.add_argument("--rule", default="gdn", help="a name, or a JSON object")
    parser.add_argument("--parallel", choices=("fsdp", "ddp", "heads"), default="fsdp")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--classes", choices=("deltarule", "fla"), default="deltarule", help="whose layers are trained")
    parser.add_argument("--checkpoint", choices=("selective", "none"), default="selective", help="whether layers are computed again")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=None,
                        help="each layer by torch.compile; by default ours on GPUs, but for --parallel heads")
    for name, value in (("layers", 2), ("hidden", 64), ("heads", 2), ("vocabulary", 257), ("batch", 8), ("seq-len", 128), ("steps", 100)):
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default {value}")
    parser.add_argument("--log-every", type=int, default=10, metavar="STEPS", help="the loss and the speed since the last line (default 10)")
    parser.add_argument("--save-every", type=int, default=50, metavar="STEPS", help="and at the end (default 50); 0: never")
    parser.add_argument("--lr", type=float, default=3e-3, help="default 3e-3")
    asked = parser.parse_args(arguments)
    if asked.vocabulary < 256 or asked.log_every < 1:
        parser.error("--vocabulary must be 256 or more, which bytes need, and --log-every 1 or more")
    return asked


def built(asked, device):
    """The model with its first values, which are the same on every process, and its configuration."""
    torch.manual_seed(1)
    rule = json.loads(asked.rule) if asked.rule.startswith("{") else asked.rule
    config = DeltaruleConfig(rule=rule, vocabulary=asked.vocabulary, hidden=asked.hidden, heads=asked.heads, layers=asked.layers, use_cache=False)
    with torch.device(device):  # where first values are drawn
        model = DeltaruleForCausalLM(config)
        if asked.classes == "fla":
            from deltarule.hf import to_fla
            model = to_fla(model)
    return model.train(), config


def checkpointed(model):
    """Each layer computed again in the backward, but for the recurrence."""
    context = functools.partial(create_selective_checkpoint_contexts, checkpoint_policy())
    for i, layer in enumerate(model.model.layers):
        model.model.layers[i] = checkpoint_wrapper(layer, context_fn=context, preserve_rng_state=False)
    return model


def divided(model, config, mesh):
    """Mixers by their heads and feed-forwards by their width; the rest is whole on every process."""
    if config.heads % mesh.size():
        raise SystemExit(f"{config.heads} heads cannot be divided by {mesh.size()} processes")
    own = config.own()
    own.update(heads=config.heads // mesh.size(), value_heads=config.value_heads // mesh.size(), layers=1)
    with torch.device("meta"):
        part = next(one for one in DeltaruleForCausalLM(DeltaruleConfig(**own)).modules() if isinstance(one, Mixer))
    for layer in model.model.layers:
        for name, module in list(layer.named_children()):
            if isinstance(module, Mixer):
                shard_heads(module, part, mesh)
            elif hasattr(module, "down_proj"):
                parallelize_module(module, mesh, {"gate_proj": ColwiseParallel(), "up_proj": ColwiseParallel(), "down_proj": RowwiseParallel()})
    return model


def distributed(model, config, asked, mesh):
    """The model that trains."""
    if asked.parallel == "heads":
        model = divided(model, config, mesh)
    if asked.checkpoint == "selective":
        model = checkpointed(model)
    ours_on_gpus = mesh.device_type == "cuda" and asked.classes == "deltarule" and asked.parallel != "heads"
    if ours_on_gpus if asked.compile is None else asked.compile:
        for layer in model.model.layers:
            layer.compile()
    if asked.parallel == "ddp":
        return DistributedDataParallel(model)
    if asked.parallel == "fsdp":
        policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def optimizer_of(model, lr):
    """AdamW; DTensors and plain tensors in groups of their own, since one multi-tensor step takes one kind."""
    kinds = {True: [], False: []}
    for one in model.parameters():
        kinds[isinstance(one, DTensor)].append(one)
    fused = next(model.parameters()).is_cuda  # one kernel for many parameters, which reads and writes each value once
    return torch.optim.AdamW([{"params": some} for some in kinds.values() if some], lr, weight_decay=0.0, fused=fused)


def batch_at(data, step, asked, rank, world):
    """This process's rows of the batch of a step."""
    draw = torch.Generator().manual_seed(1000003 * step + 1)
    begin = torch.randint(0, len(data) - asked.seq_len, (asked.batch,), generator=draw)[rank::world]
    return torch.stack([data[i:i + asked.seq_len] for i in begin.tolist()]).long()


def newest(out):
    """The last checkpoint of a folder that was written whole; None if there is none."""
    written = sorted(glob.glob(os.path.join(out, "step-*", ".metadata")))  # what is written last
    return os.path.dirname(written[-1]) if written else None


def save(state, out):
    """Writes a checkpoint, and then removes the one before it."""
    before = newest(out)
    dcp.save(state, checkpoint_id=os.path.join(out, f"step-{state['step']:09}"))
    if before is not None and dist.get_rank() == 0:
        shutil.rmtree(before)


def resumed(model, optimizer, out):
    """The number of steps behind the newest checkpoint of a folder, which is loaded; 0 without one."""
    before = newest(out)
    if before is None:
        return 0
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": 0}
    dcp.load(state, checkpoint_id=before)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return state["step"]


def means(losses, world):
    """The losses of some steps, each the mean over all processes; waits for these steps."""
    mean = torch.stack(losses)
    dist.all_reduce(mean)
    return (mean / world).tolist()


def train(model, optimizer, data, asked, device, readers):
    """The losses of the steps that are left."""
    rank, world, losses, untold = dist.get_rank() % readers, dist.get_world_size(), [], []
    first, begin = resumed(model, optimizer, asked.out), time.perf_counter()
    for step in range(first, asked.steps):
        ids = batch_at(data, step, asked, rank, readers)
        ids = ids.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else ids
        with torch.autocast(device.type, torch.bfloat16, enabled=asked.dtype == "bfloat16"):
            loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        untold.append(loss.detach())
        last = step + 1 == asked.steps
        if last or (step + 1) % asked.log_every == 0:
            count = len(untold)
            losses += means(untold, world)
            untold, seconds = [], time.perf_counter() - begin
            if dist.get_rank() == 0:
                speed = count * asked.batch * asked.seq_len / seconds
                print(json.dumps({"step": step + 1, "loss": losses[-1], "tokens_per_second": round(speed)}), flush=True)
            begin = time.perf_counter()
        if asked.save_every and (last or (step + 1) % asked.save_every == 0):
            weights, moments = get_state_dict(model, optimizer)
            save({"model": weights, "optimizer": moments, "step": step + 1}, asked.out)
    return losses


def main(arguments=None):
    """The losses of this call's steps."""
    asked = options(arguments)
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with open(asked.corpus, "rb") as file:
        data = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
    if len(data) <= asked.seq_len:
        raise SystemExit(f"{asked.corpus} has {len(data)} bytes: a sequence of {asked.seq_len} needs more")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    world = dist.get_world_size()
    readers = 1 if asked.parallel == "heads" else world  # whoever shares the heads of a model reads the same batch
    if asked.batch % readers:
        raise SystemExit(f"a batch of {asked.batch} sequences cannot be divided by {readers} processes")
    model, config = built(asked, device)
    model = distributed(model, config, asked, init_device_mesh(device.type, (world,)))
    losses = train(model, optimizer_of(model, asked.lr), data, asked, device, readers)
    dist.destroy_process_group()
    return losses


if __name__ == "__main__":
    main()
