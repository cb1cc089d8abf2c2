#!/usr/bin/env python3
"""Compares deltarule on the CPU with what people run in PyTorch there: transformers' torch_chunk_gated_delta_rule and
torch_recurrent_gated_delta_rule, and flash-linear-attention's naive kda.

Both sides get the same inputs in the same process, each in memory of its own allocator, run in turn on as many threads, and must agree. A line tells the median and best
time of each, the median of the ratios, and the largest difference relative to the largest number. A package that is missing is
skipped with a message; bench/install-peers makes an environment that has them all.

Usage: peers_cpu.py [--library FILE] [--threads 1,2] [--tokens 512,4096] [--repeats N] [--only WORD] [--csv FILE]   (--help tells more)
"""
import argparse
import csv
import ctypes
import importlib
import inspect
import os
import statistics
import sys
import time
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_int64, c_size_t, c_void_p

# Threads that spin while they wait would disturb the other side's turn.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

INPUTS, STATES = 19, 4  # DR_INPUTS, DR_STATES of <deltarule/rule.h>
QUERY, KEY, VALUE, LOG_DECAY, BETA = range(5)  # the first of dr_input


class Options(ctypes.Structure):
    _fields_ = [("threads", c_int), ("isa", c_char_p), ("dtype", c_int), ("device", c_int), ("stream", c_void_p), ("weights", c_int)]


class Layout(ctypes.Structure):
    _fields_ = [("sequences", c_int64), ("rows", c_int64), ("cu_seqlens", c_void_p)]


class Recurrence(ctypes.Structure):
    _fields_ = [("rule", c_void_p), ("layout", Layout), ("key_heads", c_int64), ("value_heads", c_int64),
                ("key_size", c_int64), ("value_size", c_int64), ("scale", c_double), ("path", c_int), ("chunk", c_int64),
                ("bf16_state", ctypes.c_bool), ("longest", ctypes.c_int64), ("forget", ctypes.c_double)]


class Memory(ctypes.Structure):
    _fields_ = [("forward", c_size_t), ("backward", c_size_t), ("saved", c_size_t), ("decode", c_size_t)]


class Inputs(ctypes.Structure):
    _fields_ = [("at", c_void_p * INPUTS)]


class States(ctypes.Structure):
    _fields_ = [("at", c_void_p * STATES)]


def open_library(file):
    library = ctypes.CDLL(file)
    library.dr_last_error.restype = c_char_p
    library.dr_version.restype = c_char_p
    library.dr_rule_find.restype = c_void_p
    library.dr_rule_find.argtypes = [c_char_p]
    library.dr_input_name.restype = c_char_p
    names = [library.dr_input_name(i).decode() for i in (QUERY, KEY, VALUE, LOG_DECAY, BETA)]
    if names != ["query", "key", "value", "log_decay", "beta"]:
        sys.exit(f"{file} is of another version: its first inputs are {names}")
    return library


class Ours:
    """A rule of the library on copies of tensors [B, T, H, size] in the library's memory."""

    def __init__(self, library, torch, rule, threads, tensors, states=None):
        self.deltarule, self.torch = library, torch
        self.backend, self.blocks = c_void_p(), []
        self.check(library.dr_backend_open(b"cpu", byref(Options(threads, None)), byref(self.backend)))
        batch, tokens, heads, size = tensors[KEY].shape
        self.recurrence = Recurrence(library.dr_rule_find(rule.encode()), Layout(batch, batch * tokens, None), heads,
                                     tensors[VALUE].shape[2], size, tensors[VALUE].shape[3], 0, 0, 0)
        memory = Memory()
        self.check(library.dr_recurrence_plan(self.backend, byref(self.recurrence), byref(memory)))
        self.inputs, self.gradients, self.states = Inputs(), Inputs(), States()
        self.d = []
        for i, tensor in enumerate(tensors):
            self.inputs.at[i] = self.copy(tensor.detach()).data_ptr()
            self.d.append(self.copy(torch.zeros_like(tensor)))
            self.gradients.at[i] = self.d[i].data_ptr()
        self.o = self.copy(torch.zeros_like(tensors[VALUE]))
        self.saved = self.allocate(memory.saved)
        self.workspace = self.allocate(max(memory.forward, memory.backward, memory.decode))
        if states is not None:
            self.states.at[0] = self.copy(states).data_ptr()

    def check(self, status):
        if status:
            sys.exit(self.deltarule.dr_last_error().decode())

    def allocate(self, size):
        block = c_void_p()
        self.check(self.deltarule.dr_backend_allocate(self.backend, c_size_t(size), byref(block)))
        self.deltarule.dr_backend_zero(self.backend, block, c_size_t(size))
        self.blocks.append(block)
        return block

    def copy(self, tensor):
        block = self.allocate(4 * tensor.numel())
        result = self.torch.frombuffer((ctypes.c_float * tensor.numel()).from_address(block.value), dtype=self.torch.float32)
        return result.view(tensor.shape).copy_(tensor)

    def forward(self, saved=None):
        self.check(self.deltarule.dr_recurrence_forward(self.backend, byref(self.recurrence), byref(self.inputs), None,
                                                      c_void_p(self.o.data_ptr()), None, saved, self.workspace))

    def both(self, d_o):
        self.forward(self.saved)
        self.check(self.deltarule.dr_recurrence_backward(self.backend, byref(self.recurrence), byref(self.inputs), None,
                                                       self.saved, c_void_p(d_o.data_ptr()), None, byref(self.gradients), None,
                                                       self.workspace))

    def decode(self):
        self.check(self.deltarule.dr_recurrence_decode(self.backend, byref(self.recurrence), byref(self.inputs),
                                                     byref(self.states), c_void_p(self.o.data_ptr()), self.workspace))

    def close(self):
        for block in self.blocks:
            self.deltarule.dr_backend_free(self.backend, block)
        self.deltarule.dr_backend_close(self.backend)


def inputs_of(torch, batch, tokens, heads, size, channel):
    """As deltarule bench draws them: unit keys and queries, gates of a layer at its start."""
    generator = torch.Generator().manual_seed(1)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    def uniform(*shape):
        return torch.rand(*shape, generator=generator)

    query, key = (torch.nn.functional.normalize(normal(batch, tokens, heads, size), dim=-1) for _ in range(2))
    value = normal(batch, tokens, heads, size)
    gates = (batch, tokens, heads, size) if channel else (batch, tokens, heads)
    decay = -(1 + 15 * uniform(*gates)) * torch.log1p(torch.exp(0.5 * normal(*gates)) * torch.expm1(0.001 * 100 ** uniform(*gates)))
    beta = torch.sigmoid(normal(batch, tokens, heads))
    return [tensor.contiguous() for tensor in (query, key, value, decay, beta)]


def difference(ours, theirs):
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def in_turn(theirs, ours, repeats):
    """Seconds of each, repeats times in turn, after a turn that does not count. Short work is repeated within a turn."""

    def seconds(work, runs):
        start = time.perf_counter()
        for _ in range(runs):
            work()
        return (time.perf_counter() - start) / runs

    runs = []
    for work in (theirs, ours):
        work()
        runs.append(max(1, int(0.02 / seconds(work, 1))))
    turns = [(seconds(theirs, runs[0]), seconds(ours, runs[1])) for _ in range(repeats)]
    return [turn[0] for turn in turns], [turn[1] for turn in turns]


class Table:
    def __init__(self, csv_file):
        self.rows = csv.writer(open(csv_file, "a", newline="", buffering=1), lineterminator="\n") if csv_file else None
        print(f"{'peer':<46} {'work':<24} {'threads':>7} {'tokens':>7} {'heads':>6} {'theirs ms':>10} {'ours ms':>10} "
              f"{'ratio':>7} {'best':>7} {'difference':>10}")

    def add(self, peer, work, threads, tokens, heads, theirs, ours, worst):
        ratio = statistics.median(a / b for a, b in zip(theirs, ours))
        best = min(theirs) / min(ours)
        print(f"{peer:<46} {work:<24} {threads:>7} {tokens:>7} {heads:>6} {1e3 * statistics.median(theirs):>10.3f} "
              f"{1e3 * statistics.median(ours):>10.3f} {ratio:>6.1f}x {best:>6.1f}x {worst:>10.1e}", flush=True)
        if self.rows:
            self.rows.writerow([peer, work, threads, tokens, heads, statistics.median(theirs), statistics.median(ours), ratio])
        if worst > 2e-3:
            sys.exit("the two sides do not agree")


def compare(library, torch, table, arguments, peer, rule, call, tokens, backward):
    """A peer's function over many tokens, forward, and forward and backward."""
    heads, size = 8, 128
    tensors = inputs_of(torch, 1, tokens, heads, size, channel=rule == "kda")
    d_o = torch.randn(tensors[VALUE].shape, generator=torch.Generator().manual_seed(2))
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        ours = Ours(library, torch, rule, threads, tensors)
        result = {}

        def theirs_forward():
            with torch.no_grad():
                result["o"] = call(*tensors)

        times = in_turn(theirs_forward, ours.forward, arguments.repeats)
        table.add(peer, "forward", threads, tokens, heads, *times, difference(ours.o, result["o"]))
        if backward:
            leaves = [tensor.clone().requires_grad_() for tensor in tensors]

            def theirs_both():
                result["d"] = torch.autograd.grad(call(*leaves), leaves, d_o)

            times = in_turn(theirs_both, lambda: ours.both(d_o), arguments.repeats)
            worst = max(difference(a, b) for a, b in zip(ours.d, result["d"]))
            table.add(peer, "forward + backward", threads, tokens, heads, *times, worst)
        ours.close()


def compare_decode(library, torch, table, arguments, peer, rule, call):
    """One token for each of 64 sequences of 16 heads, states updated."""
    batch, heads, size = 64, 16, 128
    tensors = inputs_of(torch, batch, 1, heads, size, channel=rule == "kda")
    states = torch.randn(batch, heads, size, size, generator=torch.Generator().manual_seed(3))
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        ours = Ours(library, torch, rule, threads, tensors, states)
        with torch.no_grad():
            o, _ = call(*tensors, states)
            ours.decode()
            worst = difference(ours.o, o)
            times = in_turn(lambda: call(*tensors, states), ours.decode, arguments.repeats)
        table.add(peer, "one token, 64 sequences", threads, 1, heads, *times, worst)
        ours.close()


def find(module, *names):
    """Functions of a module, bare of what a decorator might put in their place; None after a message where they are missing."""
    try:
        loaded = importlib.import_module(module)
        return [inspect.unwrap(getattr(loaded, name)) for name in names]
    except (ImportError, AttributeError, RuntimeError) as error:
        print(f"skipped: {module}: {error}")
        return None


def compare_transformers(library, torch, table, arguments):
    found = find("transformers.models.qwen3_next.modeling_qwen3_next", "torch_chunk_gated_delta_rule",
                 "torch_recurrent_gated_delta_rule")
    if not found:
        return
    chunk, recurrent = found
    for tokens in arguments.tokens:
        compare(library, torch, table, arguments, "transformers torch_chunk_gated_delta_rule", "gdn",
                lambda q, k, v, g, b: chunk(q, k, v, g, b)[0], tokens, backward=True)
    if arguments.only == "chunk":
        return
    initial = {"initial_state": None, "output_final_state": False}
    compare(library, torch, table, arguments, "transformers torch_recurrent_gated_delta_rule", "gdn",
            lambda q, k, v, g, b: recurrent(q, k, v, g, b, **initial)[0], 256, backward=False)
    compare_decode(library, torch, table, arguments, "transformers torch_recurrent_gated_delta_rule", "gdn",
                   lambda q, k, v, g, b, s: recurrent(q, k, v, g, b, initial_state=s, output_final_state=True))


def compare_fla(library, torch, table, arguments):
    found = find("fla.ops.kda.naive", "naive_chunk_kda", "naive_recurrent_kda")
    if not found:
        return
    chunk, recurrent = found
    for tokens in arguments.tokens:
        compare(library, torch, table, arguments, "fla naive_chunk_kda", "kda",
                lambda q, k, v, g, b: chunk(q, k, v, g, b)[0], tokens, backward=tokens <= 1024)
    compare(library, torch, table, arguments, "fla naive_recurrent_kda", "kda",
            lambda q, k, v, g, b: recurrent(q, k, v, g, b)[0], 256, backward=False)


def numbers(text):
    return [int(part) for part in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parser.add_argument("--library", dest="file", default=os.path.join(here, "build/release/libdeltarule.so"))
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--tokens", type=numbers, default=[512, 4096])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=["transformers", "chunk", "fla"], help="chunk: of transformers, that alone")
    parser.add_argument("--csv", help="a file to add lines to: peer, work, threads, tokens, heads, their and our seconds, ratio")
    arguments = parser.parse_args()
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        print(f"skipped: {error}; bench/install-peers makes an environment that has it")
        return
    library = open_library(arguments.file)
    versions = [f"deltarule {library.dr_version().decode()}", f"torch {torch.__version__}"]
    for name in ("transformers", "fla"):
        try:
            versions.append(f"{name} {importlib.import_module(name).__version__}")
        except (ImportError, RuntimeError):
            pass
    print(", ".join(versions))
    table = Table(arguments.csv)
    if arguments.only != "fla":
        compare_transformers(library, torch, table, arguments)
    if arguments.only in (None, "fla"):
        compare_fla(library, torch, table, arguments)


if __name__ == "__main__":
    main()
