#!/usr/bin/env python3
"""Trains a language model on a GPU beside flash-linear-attention's model of the same shape and a plain GPT, in one run on one card.

    python bench/peers_train.py                        tokens/s of ours, of its model eager and by torch.compile, and of the GPT
    python bench/peers_train.py --losses --corpus FILE losses of 200 steps of ours and of its model, from the same weights and batches

A step is a batch of 16 sequences of 2,048 tokens, the gradient of the mean loss, a norm of at most 1, and AdamW. Peers have weights in
float32, products in bfloat16 under autocast, fused AdamW and, of flash-linear-attention, the fused norm, gate and loss that its
configuration switches on by itself. Ours is `deltarule bench train`, before the peers and again behind them: what the two differ by is
what the card changed meanwhile. Times are medians of --repeats, each of some steps; memory is what PyTorch held at most.

With --losses our gradients come from the C library (dr_session_gradient), and both sides have the same AdamW of PyTorch; batches are
drawn from the bytes of a file. Rate and warm-up are those of examples/recipes/delta_net_340m.json. The exit status is 1 where two losses
of a step differ by more than --most.

What is not installed is named and left out. Before its first step flash-linear-attention compiles and measures each configuration of
each kernel; with --jobs N so many processes compile them first, by python/bench/triton_tuning.py. Without it --losses takes of each
kernel the first configuration that runs, which may be slow.
"""
import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from ctypes import byref, c_char_p, c_double, c_int, c_int64, c_void_p

HERE = os.path.dirname(os.path.abspath(__file__))
LAYERS, WIDTH, HEADS, MIDDLE, VOCABULARY = 24, 1024, 8, 2816, 32000
BATCH, TOKENS = 16, 2048
BF16 = 3  # dr_dtype of <deltarule/tensor.h>

try:
    import torch
except ImportError:
    sys.exit("peers_train: PyTorch is not installed: there is nothing to compare with")


# ---- flash-linear-attention ------------------------------------------------------------------------------------------------------------

def fla_model(layers=LAYERS):
    from fla.models import DeltaNetConfig, DeltaNetForCausalLM
    torch.manual_seed(0)
    with torch.device("cuda"):
        return DeltaNetForCausalLM(DeltaNetConfig(hidden_size=WIDTH, num_hidden_layers=layers, num_heads=HEADS, intermediate_size=MIDDLE,
                                                  vocab_size=VOCABULARY, tie_word_embeddings=True))


def fla_loss(model, ids):
    return model(input_ids=ids, labels=ids).loss


# ---- a plain GPT -----------------------------------------------------------------------------------------------------------------------

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        heads = [one.view(*x.shape[:2], 16, WIDTH // 16).transpose(1, 2) for one in self.qkv(self.first(x)).split(WIDTH, 2)]
        y = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        return x + self.down(torch.nn.functional.gelu(self.up(self.second(x)), approximate="tanh"))


class GPT(torch.nn.Module):
    """GPT-2 of 24 layers of 1,024, as llm.c trains it, with our vocabulary."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(VOCABULARY, WIDTH), torch.nn.Embedding(TOKENS, WIDTH)
        self.blocks, self.norm = torch.nn.ModuleList(Block() for _ in range(LAYERS)), torch.nn.LayerNorm(WIDTH)
        for one in self.parameters():
            if one.dim() > 1:
                torch.nn.init.normal_(one, std=0.02)

    def forward(self, ids):
        x = self.tokens(ids) + self.places.weight[:ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.norm(x)[:, :-1] @ self.tokens.weight.T
        return torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))


def gpt_model():
    torch.manual_seed(0)
    with torch.device("cuda"):
        return GPT()


def gpt_loss(model, ids):
    return model(ids)


# ---- a step of PyTorch -----------------------------------------------------------------------------------------------------------------

class Trained:
    """A model of PyTorch, its optimizer and its steps."""

    def __init__(self, model, loss, compiled=False, rate=1e-5):
        self.model, self.loss = model.cuda().train(), loss
        self.run = torch.compile(self.model) if compiled else self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), rate, betas=(0.9, 0.95), weight_decay=0.01, fused=True)

    def step(self, ids, rate=None):
        for group in self.optimizer.param_groups:
            group["lr"] = rate or group["lr"]
        with torch.autocast("cuda", torch.bfloat16):
            loss = self.loss(self.run, ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def seconds_of(trained, repeats, steps):
    """Seconds of a step: one figure a repeat, behind the steps that set things up."""
    ids = torch.randint(0, VOCABULARY, (BATCH, TOKENS), device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    for _ in range(5):
        trained.step(ids)
    torch.cuda.synchronize()
    found = []
    for _ in range(repeats):
        begin = time.perf_counter()
        for _ in range(steps):
            trained.step(ids)
        torch.cuda.synchronize()
        found.append((time.perf_counter() - begin) / steps)
    return found


# ---- ours ------------------------------------------------------------------------------------------------------------------------------

def our_shape():
    return ["--layers", LAYERS, "--hidden", WIDTH, "--heads", HEADS, "--intermediate", MIDDLE, "--vocabulary", VOCABULARY, "--output-gate", "false"]


def our_speed(asked, name):
    command = [asked.deltarule, "bench", "train", "--rule", asked.model, *our_shape(), "--batch", BATCH, "--seq-len", TOKENS, "--backend", "cuda",
               "--dtype", "bf16", "--repeats", asked.repeats, "--json"]
    done = subprocess.run([str(one) for one in command], capture_output=True, text=True)
    if done.returncode:
        return told(asked, name, None, done.stderr.strip())
    result = json.loads(done.stdout.splitlines()[0])
    return told(asked, name, {"tokens_per_second": result["tokens_per_second"], "gib": result["bytes"] / 2**30})


class Layout(ctypes.Structure):
    _fields_ = [("sequences", c_int64), ("rows", c_int64), ("cu_seqlens", c_void_p)]


class Batch(ctypes.Structure):
    _fields_ = [("layout", Layout), ("ids", c_void_p), ("targets", c_int64), ("positions", c_void_p), ("labels", c_void_p)]


class Options(ctypes.Structure):
    _fields_ = [("threads", c_int), ("isa", c_char_p), ("dtype", c_int), ("device", c_int), ("stream", c_void_p), ("weights", c_int)]


class Shown:
    """Memory of the device, for torch.as_tensor."""

    def __init__(self, address, count):
        self.__cuda_array_interface__ = {"data": (address, False), "shape": (count,), "typestr": "<f4", "version": 3}


class Ours:
    """A model of the C library in a folder, whose parameters and gradients are tensors of PyTorch."""

    def __init__(self, library, folder, rate):
        lib = self.lib = ctypes.CDLL(library)
        lib.dr_last_error.restype, lib.dr_model_parameter_block.restype, lib.dr_model_block_count.restype = c_char_p, c_void_p, c_int64
        lib.dr_session_gradient.argtypes = [c_void_p, c_void_p, c_double, c_void_p, c_void_p, c_void_p]
        self.backend, self.model, self.session, block = c_void_p(), c_void_p(), c_void_p(), c_void_p()
        self.check(lib.dr_backend_open(b"cuda", byref(Options(0, None, BF16, torch.cuda.current_device(), None, 0)), byref(self.backend)))
        self.check(lib.dr_model_load(self.backend, os.fsencode(folder), byref(self.model)))
        self.check(lib.dr_session_create(self.model, byref(self.session)))
        self.check(lib.dr_model_gradients_create(self.model, byref(block)))
        count = lib.dr_model_block_count(self.model)
        self.gradients = block.value
        self.parameters = torch.as_tensor(Shown(lib.dr_model_parameter_block(self.model), count), device="cuda").requires_grad_()
        self.parameters.grad = torch.as_tensor(Shown(block.value, count), device="cuda")
        self.optimizer = torch.optim.AdamW([self.parameters], rate, betas=(0.9, 0.95), weight_decay=0.01, fused=True)

    def check(self, status):
        if status:
            sys.exit(f"peers_train: {self.lib.dr_last_error().decode()}")

    def step(self, ids, rate):
        """The loss is that of the tokens behind the first of each sequence, as flash-linear-attention's model has it."""
        batch, tokens = ids.shape
        ids = ids.cpu().to(torch.int32).contiguous()
        positions = torch.arange(batch * tokens).view(batch, tokens)[:, :-1].contiguous()
        labels, loss, targets = ids[:, 1:].contiguous(), c_double(), batch * (tokens - 1)
        asked = Batch(Layout(batch, batch * tokens, None), ids.data_ptr(), targets, positions.data_ptr(), labels.data_ptr())
        self.parameters.grad.zero_()
        torch.cuda.synchronize()
        self.check(self.lib.dr_session_gradient(self.session, byref(asked), 1.0 / targets, self.gradients, byref(loss), None))
        torch.nn.utils.clip_grad_norm_([self.parameters], 1.0)
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.step()
        torch.cuda.synchronize()
        self.check(self.lib.dr_model_changed(self.model))
        return loss.value / targets

    def close(self):
        self.lib.dr_session_destroy(self.session)
        self.lib.dr_backend_free(self.backend, c_void_p(self.gradients))
        self.lib.dr_model_destroy(self.model)
        self.lib.dr_backend_close(self.backend)


# ---- what is told ----------------------------------------------------------------------------------------------------------------------

def told(asked, name, result, lacking=""):
    if result is None:
        print(f"{name:22} left out: {lacking}", flush=True)
    else:
        print(f"{name:22} {result['tokens_per_second']:10,.0f} tokens/s  {result['gib']:5.1f} GiB", flush=True)
    asked.results[name] = result or {"left_out": lacking}
    return result


def peer_speed(asked, name, make, loss, compiled):
    torch.cuda.reset_peak_memory_stats()
    try:
        trained = Trained(make(), loss, compiled)
        found = seconds_of(trained, asked.repeats, asked.steps or 10)
        median = statistics.median(found)
        result = {"tokens_per_second": BATCH * TOKENS / median, "gib": torch.cuda.max_memory_allocated() / 2**30, "spread": (max(found) - min(found)) / median}
        told(asked, name, result)
    except Exception as reason:  # a peer that does not run here is no reason to end
        result = told(asked, name, None, f"{type(reason).__name__}: {str(reason).splitlines()[0] if str(reason) else ''}")
    trained = None
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    return result


def speeds(asked):
    first = our_speed(asked, "ours")
    best = [peer_speed(asked, "fla", fla_model, fla_loss, False)]
    if not asked.eager:
        best.append(peer_speed(asked, "fla, torch.compile", fla_model, fla_loss, True))
        peer_speed(asked, "gpt", gpt_model, gpt_loss, False)
        peer_speed(asked, "gpt, torch.compile", gpt_model, gpt_loss, True)
    again = our_speed(asked, "ours again")
    best, ours = [one["tokens_per_second"] for one in best if one], [one["tokens_per_second"] for one in (first, again) if one]
    if best and ours:
        print(f"ours over the faster of flash-linear-attention's: {statistics.mean(ours) / max(best):.2f}", flush=True)


def tuning():
    sys.path.insert(0, os.path.join(HERE, "..", "python", "bench"))
    import triton_tuning
    return triton_tuning


def tell_losses(who, found, begin):
    print(who, *(f"{one:.5f}" for one in found[::10]), f"{found[-1]:.5f}", f"({len(found)} steps, {time.perf_counter() - begin:.0f} s)", flush=True)


def losses(asked):
    if not asked.jobs:
        tuning().first_that_runs()  # losses do not depend on it
    with open(asked.corpus, "rb") as file:
        data = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
    steps, draw = asked.steps or 200, torch.Generator().manual_seed(1)
    batches = [torch.stack([data[i:i + TOKENS] for i in torch.randint(0, len(data) - TOKENS, (BATCH,), generator=draw).tolist()]) for _ in range(steps)]
    model, rates = fla_model(), [asked.rate * min(1, (step + 1) / asked.warmup) for step in range(steps)]
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        begin, ours = time.perf_counter(), Ours(asked.library, folder, asked.rate)
        own = [ours.step(ids.long(), rate) for ids, rate in zip(batches, rates)]
        ours.close()
        tell_losses("ours", own, begin)
    trained, begin, other = Trained(model, fla_loss), time.perf_counter(), []
    for ids, rate in zip(batches, rates):
        other.append(trained.step(ids.long().cuda(), rate).item())
        if len(other) in (1, 20, 100):
            tell_losses("fla ", other, begin)
    tell_losses("fla ", other, begin)
    apart = [abs(a - b) / b for a, b in zip(own, other)]
    worst = max(range(steps), key=lambda step: apart[step])
    print(f"largest relative difference {apart[worst]:.2e}, of step {worst + 1}; of the last {apart[-1]:.2e}", flush=True)
    asked.results.update(losses={"ours": own, "fla": other, "largest": apart[worst]})
    return apart[worst] > asked.most


def compile_part(asked):
    tuning().first_that_runs(*map(int, asked.part.split("/")))
    Trained(fla_model(1), fla_loss).step(torch.zeros(BATCH, TOKENS, dtype=torch.long, device="cuda"))


def options():
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--deltarule", default=os.path.join(HERE, "..", "build", "cuda", "deltarule"))
    made.add_argument("--library", default=os.path.join(HERE, "..", "build", "cuda", "libdeltarule.so"))
    made.add_argument("--model", default="delta_net", choices=["delta_net"], help="its gated rules need a Triton of their own on Hopper")
    made.add_argument("--repeats", type=int, default=5)
    made.add_argument("--batch", type=int, default=BATCH, help=f"sequences of {TOKENS} tokens a step (default {BATCH})")
    made.add_argument("--eager", action="store_true", help="ours and flash-linear-attention's model as it is, and nothing else")
    made.add_argument("--steps", type=int, default=0, help="of a repeat (default 10), or of losses (default 200)")
    made.add_argument("--losses", action="store_true")
    made.add_argument("--corpus", help="of --losses: any file")
    made.add_argument("--rate", type=float, default=4e-4, help="learning rate of --losses (default 4e-4)")
    made.add_argument("--warmup", type=int, default=1024, help="steps over which the rate of --losses rises (default 1024)")
    made.add_argument("--most", type=float, default=5e-3, help="relative difference of losses at most (default 0.005)")
    made.add_argument("--jobs", type=int, default=0, help="processes that compile flash-linear-attention's kernels first")
    made.add_argument("--json", help="file for all figures")
    made.add_argument("--part", help=argparse.SUPPRESS)
    return made.parse_args()


def main():
    global BATCH
    asked = options()
    asked.results, BATCH = {}, asked.batch
    if not torch.cuda.is_available():
        sys.exit("peers_train: PyTorch finds no GPU")
    if asked.losses and not asked.corpus:
        sys.exit("peers_train: --losses needs --corpus")
    if asked.part:
        return compile_part(asked)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}; {LAYERS} layers of {WIDTH}, {BATCH} x {TOKENS} tokens", flush=True)
    if asked.jobs:
        tuning().compile_first(asked.jobs)
    failed = losses(asked) if asked.losses else speeds(asked)
    if asked.json:
        with open(asked.json, "w") as file:
            json.dump(asked.results, file)
    return failed


if __name__ == "__main__":
    sys.exit(main())
