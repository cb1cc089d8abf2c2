#!/usr/bin/env python3
"""Times deltarule on a GPU beside flash-linear-attention's Triton kernels, FlashQLA's and FlashKDA's, on the same inputs in the same
process.

deltarule is called through its C library with plain device pointers: PyTorch makes the inputs, the stream and the events. Every
line is one rule and shape: the median of the forward and of forward and backward, with the spread from quartile to quartile, the
share of this machine's own ceilings measured in the same run (a device copy, counting bytes read and written; a bf16 product of
8192^3), and the ratio of a peer's median to ours. A peer's kernels are timed as one CUDA graph, where they can be captured, since launching
them from Python can take longer than they do; what the call took is told behind. A peer that is not installed is named as missing.

--recorded needs neither PyTorch nor peers: it runs `deltarule bench` and prints the ratios of times recorded on an H200 to ours: those
of flash-linear-attention bc3b101 (Triton 3.6, torch 2.11) over many tokens and decoding, of FlashQLA and FlashInfer where they have
one, and the ratios between our own rules. Only on such a GPU do they mean anything. It ends with what a fresh process waits for its
first forward and backward.

Bytes are those that must move: inputs and outputs once each way. Operations are counted as by the chunkwise form in chunks of 64
tokens, 6 K V + 64 (2 K + 2 V) a token and value head, three times that with the backward, whatever the kernel does.

Before a peer's first call Triton compiles and measures each configuration of each of its kernels, minutes in one process; with --jobs N so
many processes compile them first, by python/bench/triton_tuning.py.

Usage: peers_gpu.py [--library FILE] [--rules NAMES] [--shapes 1x32768x8,16x2048x8] [--dtype bf16] [--repeats N] [--jobs N] [--json FILE]
       peers_gpu.py --recorded [--deltarule FILE] [--rules NAMES] [--shapes ...] [--repeats N] [--json FILE]
"""
import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_int64, c_size_t, c_void_p

try:
    import torch
except ImportError as reason:
    torch, torch_missing = None, reason

INPUT_NAMES = ("query key value log_decay beta erase_key erase_gain lambda feedback_key free_read free_write rate erase_gate "
               "write_gate correction scan_log_decay scan_gain scan_centre ridge").split()  # dr_input of <deltarule/rule.h>
INPUTS, STATES, MAX_RANK = len(INPUT_NAMES), 4, 6
F32, F16, BF16 = 0, 2, 3  # dr_dtype of <deltarule/tensor.h>
TORCH_TYPES = torch and {F32: torch.float32, F16: torch.float16, BF16: torch.bfloat16}

# ms, forward and forward + backward: flash-linear-attention bc3b101, Triton 3.6, torch 2.11, bf16, one H200, 2026-11-21
RECORDED = {
    "mamba2": {"1x32768x8": (0.337, 1.476), "16x2048x8": (0.263, 1.255), "1x8192x32": (0.299, 1.364), "1x131072x8": (1.289, 5.646)},
    "gla": {"1x32768x8": (1.068, 4.074), "16x2048x8": (0.773, 3.151), "1x8192x32": (0.771, 3.143), "1x131072x8": (4.345, 16.09)},
    "delta_net": {"1x32768x8": (0.946, 2.883), "16x2048x8": (0.557, 1.545), "1x8192x32": (0.550, 1.548), "1x131072x8": (3.682, 11.27)},
    "gdn": {"1x32768x8": (0.962, 3.606), "16x2048x8": (0.482, 1.845), "1x8192x32": (0.495, 1.874), "1x131072x8": (3.695, 13.98)},
    "kda": {"1x32768x8": (1.554, 7.041), "16x2048x8": (0.987, 5.407), "1x8192x32": (1.007, 5.118), "1x131072x8": (6.078, 27.76)},
    "gdn2": {"1x32768x8": (1.698, 7.618), "16x2048x8": (1.122, 5.964), "1x8192x32": (1.151, 6.067), "1x131072x8": (6.617, 29.99)},
    "pgdn": {"1x32768x8": (1.890, 6.719), "16x2048x8": (0.890, 3.436), "1x8192x32": (1.003, 3.789), "1x131072x8": (7.973, 27.61)},
    "pkda": {"1x32768x8": (2.508, 10.03), "16x2048x8": (1.454, 6.886), "1x8192x32": (1.574, 7.304)},
    "dplr": {"1x32768x8": (7.18, 21.3)},
    "qdelta": {"16x2048x8": (0.633, 2.793)},
}
# ms of gdn by others: FlashQLA c18a486 (its own table, CUDA graphs), FlashInfer 0.6.13; 16x2048x8 scaled from rows with as many chains
RECORDED_OTHERS = {"1x32768x8": (("FlashQLA", 0.320, 1.207),), "1x8192x32": (("FlashQLA", 0.280, 1.069),),
                   "16x2048x8": (("FlashQLA", 0.172, None), ("FlashInfer", 0.117, None))}
# us, one token of so many sequences, 32 heads, K = V = 128, float32 states, CUDA graph, by the same
RECORDED_DECODE = {"gdn": {1: 7.6, 32: 52.9, 256: 368.8}, "kda": {1: 8.8, 32: 41.7, 256: 285.1}}
# A rule's time over that of the rule it extends
RELATIVES = (("qdelta", "gdn"), ("pgdn", "gdn"), ("dplr", "pgdn"), ("pkda", "kda"), ("eda", "kda"))


class Options(ctypes.Structure):
    _fields_ = [("threads", c_int), ("isa", c_char_p), ("dtype", c_int), ("device", c_int), ("stream", c_void_p), ("weights", c_int)]


class Layout(ctypes.Structure):
    _fields_ = [("sequences", c_int64), ("rows", c_int64), ("cu_seqlens", c_void_p)]


class Recurrence(ctypes.Structure):
    _fields_ = [("rule", c_void_p), ("layout", Layout), ("key_heads", c_int64), ("value_heads", c_int64), ("key_size", c_int64),
                ("value_size", c_int64), ("scale", c_double), ("path", c_int), ("chunk", c_int64), ("bf16_state", ctypes.c_bool),
                ("longest", c_int64), ("forget", c_double)]


class Memory(ctypes.Structure):
    _fields_ = [("forward", c_size_t), ("backward", c_size_t), ("saved", c_size_t), ("decode", c_size_t)]


class Inputs(ctypes.Structure):
    _fields_ = [("at", c_void_p * INPUTS)]


def open_library(file):
    library = ctypes.CDLL(file)
    library.dr_last_error.restype = c_char_p
    library.dr_rule_find.restype = c_void_p
    library.dr_rule_uses.restype = ctypes.c_bool
    library.dr_rule_uses.argtypes = [c_void_p, c_int]
    library.dr_recurrence_input_dtype.argtypes = [c_void_p, c_int]
    library.dr_recurrence_input_shape.argtypes = [POINTER(Recurrence), c_int, POINTER(c_int64)]
    library.dr_recurrence_kernel.argtypes = [c_void_p, POINTER(Recurrence), ctypes.c_bool, c_char_p, c_size_t]
    library.dr_recurrence_plan.argtypes = [c_void_p, POINTER(Recurrence), POINTER(Memory)]
    library.dr_recurrence_forward.argtypes = [c_void_p, POINTER(Recurrence), POINTER(Inputs)] + [c_void_p] * 5
    library.dr_recurrence_backward.argtypes = [c_void_p, POINTER(Recurrence), POINTER(Inputs)] + [c_void_p] * 4 + \
        [POINTER(Inputs), c_void_p, c_void_p]
    return library


def check(library, status):
    if status != 0:
        raise RuntimeError(library.dr_last_error().decode())


def median_ms(run, repeats):
    """Median and relative spread of so many runs by events, after three to warm up."""
    for _ in range(3):
        run()
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for begin, end in pairs:
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize()
    times = sorted(begin.elapsed_time(end) for begin, end in pairs)
    middle = statistics.median(times)
    return middle, (times[3 * repeats // 4] - times[repeats // 4]) / middle


def ceilings():
    x = torch.randn(1 << 29, device="cuda")
    y = torch.empty_like(x)
    copy = 2 * x.numel() * 4 / median_ms(lambda: y.copy_(x), 20)[0] * 1e3
    del x, y
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return copy, 2 * 8192.0**3 / median_ms(lambda: a @ b, 20)[0] * 1e3


def draw(name, shape, dtype):
    """Keys and queries of length one, decays of some percent a token, gates within 0 and 1."""
    x = torch.randn(shape, device="cuda")
    if name in ("query", "key", "erase_key", "feedback_key", "free_read", "free_write"):
        x = torch.nn.functional.normalize(x, dim=-1) * (0.5 if name.startswith("free") else 1)
    elif name.endswith("log_decay"):
        x = -0.1 * torch.rand(shape, device="cuda")
    elif name in ("correction", "lambda"):
        x = 0.3 * torch.rand(shape, device="cuda")
    elif name == "ridge":
        x = 0.3 + torch.rand(shape, device="cuda")
    elif name != "value" and name != "scan_centre":
        x = torch.rand(shape, device="cuda")
    return x.to(dtype).contiguous()


class Case:
    """One rule and shape of deltarule: its tensors, and running it."""

    def __init__(self, library, backend, rule, shape, size):
        self.deltarule, self.backend = library, backend
        sequences, tokens, heads = shape
        address = library.dr_rule_find(rule.encode())
        if not address:
            raise RuntimeError(library.dr_last_error().decode())
        self.recurrence = Recurrence(rule=address, layout=Layout(sequences, sequences * tokens, None), key_heads=heads,
                                     value_heads=heads, key_size=size, value_size=size, forget=2.0**-20)
        self.memory = Memory()
        check(library, library.dr_recurrence_plan(backend, byref(self.recurrence), byref(self.memory)))
        self.tensors, self.gradients = {}, {}
        self.inputs, self.input_gradients = Inputs(), Inputs()
        for i, name in enumerate(INPUT_NAMES):
            if not library.dr_rule_uses(address, i):
                continue
            sizes = (c_int64 * MAX_RANK)()
            rank = library.dr_recurrence_input_shape(byref(self.recurrence), i, sizes)
            dtype = TORCH_TYPES[library.dr_recurrence_input_dtype(backend, i)]
            self.tensors[name] = draw(name, tuple(sizes[:rank]), dtype)
            self.gradients[name] = torch.empty_like(self.tensors[name])
            self.inputs.at[i] = self.tensors[name].data_ptr()
            self.input_gradients.at[i] = self.gradients[name].data_ptr()
        dtype = self.tensors["value"].dtype
        self.o = torch.empty((sequences * tokens, heads, size), device="cuda", dtype=dtype)
        self.d_o = torch.randn(self.o.shape, device="cuda").to(dtype)
        self.block = {part: torch.empty(max(1, getattr(self.memory, part)), device="cuda", dtype=torch.uint8)
                      for part in ("forward", "backward", "saved")}
        text = ctypes.create_string_buffer(96)
        library.dr_recurrence_kernel(backend, byref(self.recurrence), False, text, 96)
        self.kernel = text.value.decode()
        moved = {name: x.numel() * x.element_size() for name, x in self.tensors.items()}
        outputs = self.o.numel() * self.o.element_size()
        self.bytes = sum(moved.values()) + outputs, 3 * sum(moved.values()) + 2 * outputs
        work = sequences * tokens * heads * (6.0 * size * size + 64 * 4 * size)
        self.operations = work, 3 * work

    def forward(self, saved=None):
        check(self.deltarule, self.deltarule.dr_recurrence_forward(self.backend, byref(self.recurrence), byref(self.inputs), None,
                                                               self.o.data_ptr(), None, saved, self.block["forward"].data_ptr()))

    def both(self):
        self.forward(self.block["saved"].data_ptr())
        check(self.deltarule, self.deltarule.dr_recurrence_backward(
            self.backend, byref(self.recurrence), byref(self.inputs), None, self.block["saved"].data_ptr(), self.d_o.data_ptr(), None,
            byref(self.input_gradients), None, self.block["backward"].data_ptr()))


FLASH_KDA_BOUND = -5.0


def flash_kda(forward, x):
    """FlashKDA, which has no backward, makes log decays and gains itself, bound * sigmoid(gate) and sigmoid(logit): from what gives
    ours, rounded to bf16, made at the first call only."""
    if "gate_logit" not in x:
        x["gate_logit"] = torch.logit((x["log_decay"].detach().float() / FLASH_KDA_BOUND).clamp(1e-12, 1 - 1e-6)).bfloat16()
        x["beta_logit"] = torch.logit(x["beta"].detach().float().clamp(1e-12, 1 - 1e-6)).bfloat16()
        x["gate_log_rate"] = torch.zeros(x["key"].shape[2], device="cuda")
        x["gate_bias"] = torch.zeros(x["key"].shape[2:], device="cuda")
    query, key, value = (x[name].detach() for name in ("query", "key", "value"))
    o = torch.empty_like(value)
    forward(query, key, value, x["gate_logit"], x["beta_logit"], key.shape[-1] ** -0.5, o, x["gate_log_rate"], x["gate_bias"], FLASH_KDA_BOUND)
    return o


def peers():
    """Functions of other packages by rule: name, and a call on the tensors of a case shaped [B, T, H, D] that gives the output."""
    found, missing = {}, []

    def add(package, module, rules):
        try:
            loaded = __import__(module, fromlist=["x"])
        except Exception as reason:  # a package may fail in any way while it is loaded
            missing.append(f"{package}: {type(reason).__name__}: {reason}")
            return
        for rule, (function, call) in rules.items():
            if hasattr(loaded, function):
                found.setdefault(rule, []).append((package, getattr(loaded, function), call))

    def fla(rule, module, function, *names, **options):
        add("fla", f"fla.ops.{module}", {rule: (function, lambda f, x: f(*(x[name] for name in ("query", "key", "value", *names)),
                                                                         **{name: x.get(of, of) for name, of in options.items()})[0])})

    fla("gdn", "gated_delta_rule", "chunk_gated_delta_rule", "log_decay", "beta")
    fla("kda", "kda", "chunk_kda", "log_decay", "beta")
    fla("delta_net", "delta_rule", "chunk_delta_rule", "beta")
    fla("gla", "gla", "chunk_gla", "log_decay")
    fla("mamba2", "simple_gla", "chunk_simple_gla", "log_decay")
    fla("gdn2", "gdn2", "chunk_gdn2", "log_decay", "erase_gate", "write_gate")
    fla("pgdn", "precond_gated_delta_rule", "chunk_precond_gated_delta_rule", "scan_log_decay", "log_decay", "scan_gain", "beta",
        use_qk_l2norm_in_kernel=False, log_atk_scale="scan_centre")
    fla("pkda", "precond_kda", "chunk_precond_kda", "log_decay", "scan_log_decay", "scan_gain", "beta", log_atk_scale="scan_centre")
    add("flashqla", "flash_qla", {"gdn": ("chunk_gated_delta_rule", lambda f, x: f(x["query"], x["key"], x["value"], x["log_decay"], x["beta"])[0])})
    add("flash_kda", "flash_kda", {"kda": ("fwd", flash_kda)})
    return found, missing


def captured(run):
    """Launches what a call does on the GPU as one CUDA graph; None where it cannot be captured."""
    graph = torch.cuda.CUDAGraph()
    try:
        run()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            run()
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    return graph.replay


def run_peer(function, call, case, shape, size, repeats):
    """Of the forward and of both milliseconds of its kernels and of the call, or a sentence where it refuses; how far its output is from
    ours, relative to it."""
    sequences, tokens, heads = shape
    shaped = {}
    for name, x in case.tensors.items():
        x = x.detach()
        if x.shape[0] == sequences * tokens:
            x = x.reshape(sequences, tokens, heads, -1).squeeze(-1)
        shaped[name] = x.requires_grad_()
    d_o = case.d_o.reshape(sequences, tokens, heads, size)
    case.forward()
    ours = case.o.reshape(d_o.shape).float()

    def forward():
        with torch.no_grad():
            return call(function, shaped)

    def both():
        for x in shaped.values():
            x.grad = None
        call(function, shaped).backward(d_o)

    def times(run):
        as_called, graph = median_ms(run, repeats)[0], captured(run)
        return median_ms(graph, repeats)[0] if graph else as_called, as_called

    difference = ((forward().float() - ours).norm() / ours.norm()).item()
    try:
        return times(forward), times(both), difference
    except RuntimeError as reason:
        return times(forward), str(reason).splitlines()[0], difference


def tell_peer(package, theirs, ours):
    text = f"  {package}"
    for part, one, our in zip(("", ", both"), theirs, ours):
        if isinstance(one, str):
            text += f"{part} {one}"
            continue
        ms, as_called = one
        text += f"{part} {ms:.3f} ms {ms / our[0]:.2f}x ({'its call ' + format(as_called, '.3f') if ms != as_called else 'of the call'})"
    return f"{text}, outputs {100 * theirs[2]:.2g}% apart"


# ---- recorded times --------------------------------------------------------------------------------------------------


def bench(wanted, *arguments):
    """Objects that `deltarule bench` prints, one a rule."""
    command = [wanted.deltarule, "bench", *arguments, "--backend", "cuda", "--dtype", wanted.dtype, "--repeats", str(wanted.repeats), "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        sys.exit(f"{' '.join(command)}: {ran.stderr.strip() or ran.returncode}")
    if ran.stderr:
        print(ran.stderr.strip())
    return [json.loads(line) for line in ran.stdout.splitlines()]


def bench_shape(wanted, shape, rules):
    """Rules of one shape, as many a process as memory bears."""
    sequences, tokens, heads = shape.split("x")
    at_once = 4 if int(sequences) * int(tokens) * int(heads) <= 1 << 18 else 1
    for i in range(0, len(rules), at_once):
        some = rules[i:i + at_once]
        against = ("--against", ",".join(some[1:])) if some[1:] else ()
        yield from bench(wanted, "op", "--rule", some[0], *against, "--sequences", sequences, "--tokens", tokens, "--heads", heads,
                         "--head-size", str(wanted.size))


def over(theirs, ours):
    return f"{theirs / ours:6.2f}x" if theirs else "      -"


def recorded(wanted):
    lines = []
    print(f"{'':22} {'forward':>40}   {'forward + backward':>40}")
    print(f"{'rule':<10} {'shape':<11}" + 2 * f" {'ms':>9} {'spread':>6} {'product':>7} {'copy':>6} {'peer/our':>8}  "
          + f" {'bytes a token-head: forward, both, saved':>40}")
    for shape in wanted.shapes.split(","):
        times = {}
        rules = [rule for rule in wanted.rules.split(",") if shape != "1x131072x8" or shape in RECORDED.get(rule, {})]
        for found in bench_shape(wanted, shape, rules):
            rule, heads = found["rule"], found["sequences"] * found["tokens"] * found["value_heads"]
            theirs = RECORDED.get(rule, {}).get(shape, (None, None)) if wanted.size == 128 and wanted.dtype == "bf16" else (None, None)
            text = f"{rule:<10} {shape:<11}"
            for i, part in enumerate(("forward", "forward_backward")):
                x = found[part]
                text += (f" {1e3 * x['seconds']:9.4f} {100 * x['spread']:5.1f}% {100 * x['share']:6.1f}% {100 * x['share_of_copy']:5.1f}%"
                         f" {over(theirs[i], 1e3 * x['seconds']):>8}  ")
            print(text + f" {found['workspace_forward'] / heads:9.0f} {found['workspace_forward_backward'] / heads:12.0f}"
                  f" {found['saved'] / heads:9.0f}", flush=True)
            others = RECORDED_OTHERS.get(shape, ()) if rule == "gdn" and wanted.size == 128 and wanted.dtype == "bf16" else ()
            for name, forward, both in others:
                ours = [1e3 * found[part]["seconds"] for part in ("forward", "forward_backward")]
                print(f"{'':<10} {name:<11} {over(forward, ours[0]):>41}   {over(both, ours[1]):>41}")
            times[rule] = [found[part]["seconds"] for part in ("forward", "forward_backward")]
            lines.append(found)
        for rule, base in RELATIVES:
            if rule in times and base in times:
                ratios = [f"{a / b:.3f}" for a, b in zip(times[rule], times[base])]
                print(f"{rule} over {base}, {shape}: forward {ratios[0]}, with the backward {ratios[1]}")
    print(f"\n{'rule':<6} {'sequences':>9} {'us':>8} {'spread':>6} {'GB/s':>7} {'of copy':>7} {'peer/our':>8}")
    for sequences in sorted({n for of_rule in RECORDED_DECODE.values() for n in of_rule}):
        for found in bench(wanted, "decode", "--rule", "gdn", "--against", "kda", "--sequences", str(sequences), "--heads", "32"):
            x = found["token"]
            print(f"{found['rule']:<6} {sequences:9} {1e6 * x['seconds']:8.1f} {100 * x['spread']:5.1f}% {x['gbs']:7.0f} {100 * x['share']:6.1f}%"
                  f" {over(RECORDED_DECODE[found['rule']][sequences], 1e6 * x['seconds']):>8}", flush=True)
            lines.append(found)
    first = [bench(wanted, "op", "--rule", "gdn", "--tokens", "2048", "--repeats", "1")[0]["first_seconds"] for _ in range(3)]
    print("\nfirst forward and backward of a fresh process, from opening the backend: " + ", ".join(f"{x:.3f} s" for x in first))
    return lines


# ---- in one process --------------------------------------------------------------------------------------------------


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--library", dest="file", default=os.path.join(here, "..", "build", "cuda", "libdeltarule.so"))
    parser.add_argument("--deltarule", default=os.path.join(here, "..", "build", "cuda", "deltarule"), help="with --recorded")
    parser.add_argument("--rules", default="gdn,kda,delta_net,gla,mamba2,gdn2,qdelta,pgdn,pkda,eda,dplr")
    parser.add_argument("--shapes", default="1x32768x8,16x2048x8,1x8192x32,1x131072x8", help="sequences x tokens x heads")
    parser.add_argument("--size", type=int, default=128, help="K and V of a head")
    parser.add_argument("--dtype", choices=("bf16", "fp16", "float32"), default="bf16")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--jobs", type=int, default=0, help="processes that compile the peers' kernels first")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--recorded", action="store_true", help="ratios to recorded times, through deltarule bench")
    parser.add_argument("--json", help="writes all numbers to this file")
    return parser.parse_args()


def tuning():
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python", "bench"))
    import triton_tuning
    return triton_tuning


def opened(wanted):
    """The library, and its backend on PyTorch's GPU and stream."""
    library = open_library(wanted.file)
    backend = c_void_p()
    options = Options(dtype={"bf16": BF16, "fp16": F16, "float32": F32}[wanted.dtype], device=torch.cuda.current_device(),
                      stream=torch.cuda.current_stream().cuda_stream)
    check(library, library.dr_backend_open(b"cuda", byref(options), byref(backend)))
    return library, backend


def compile_part(wanted):
    """Runs each peer once at each shape, and compiles this process's share of the configurations on the way."""
    tuning().first_that_runs(*map(int, wanted.part.split("/")))
    library, backend = opened(wanted)
    found, _ = peers()
    for rule in wanted.rules.split(","):
        for shape in (tuple(int(x) for x in name.split("x")) for name in wanted.shapes.split(",")) if rule in found else ():
            case = Case(library, backend, rule, shape, wanted.size)
            for _, function, call in found[rule]:
                try:
                    run_peer(function, call, case, shape, wanted.size, 1)
                except Exception as reason:  # the process that measures tells what a peer cannot do
                    print(f"{rule}: {reason}", flush=True)


def beside(wanted):
    if wanted.jobs:
        tuning().compile_first(wanted.jobs)
    library, backend = opened(wanted)
    copy, product = ceilings()
    print(f"{torch.cuda.get_device_name()}: device copy {copy * 1e-12:.2f} TB/s, bf16 product {product * 1e-12:.0f} TFLOP/s")
    found, missing = peers()
    for line in sorted(set(missing)):
        print(f"peer missing: {line}")
    lines = []
    for rule in wanted.rules.split(","):
        for name in wanted.shapes.split(","):
            shape = tuple(int(x) for x in name.split("x"))
            try:
                case = Case(library, backend, rule, shape, wanted.size)
                ours = median_ms(case.forward, wanted.repeats), median_ms(case.both, wanted.repeats)
            except (RuntimeError, torch.cuda.OutOfMemoryError) as reason:
                print(f"{rule:<10} {name:<11} not run: {str(reason).splitlines()[0]}")
                continue
            if not torch.isfinite(case.o.float()).all():
                sys.exit(f"{rule} {name}: the output is not finite")
            line = {"rule": rule, "shape": name, "kernel": case.kernel, "copy": copy, "product": product}
            text = f"{rule:<10} {name:<11}"
            for i, part in enumerate(("forward", "both")):
                ms, spread = ours[i]
                line[part] = {"ms": ms, "spread": spread, "bytes": case.bytes[i], "operations": case.operations[i]}
                text += (f"  {part} {ms:7.3f} ms +-{100 * spread:.0f}% {case.operations[i] / ms * 1e-9:4.0f} TFLOP/s"
                         f" ({100 * case.operations[i] / ms * 1e3 / product:.0f}%) {case.bytes[i] / ms * 1e-6:5.0f} GB/s"
                         f" ({100 * case.bytes[i] / ms * 1e3 / copy:.0f}%)")
            for package, function, call in found.get(rule, []):
                try:
                    theirs = run_peer(function, call, case, shape, wanted.size, wanted.repeats)
                except Exception as reason:  # what a peer cannot do is told, not hidden
                    text += f"  {package}: {type(reason).__name__}"
                    continue
                line[package] = theirs[:2]
                text += tell_peer(package, theirs, ours)
            print(text, flush=True)
            lines.append(line)
            del case
            torch.cuda.empty_cache()
    return lines


def main():
    wanted = arguments()
    if not wanted.recorded and not torch:
        print(f"skipped: PyTorch, which makes the inputs and the events, is not there: {torch_missing}")
        return
    if wanted.part:
        compile_part(wanted)
        return
    lines = recorded(wanted) if wanted.recorded else beside(wanted)
    if wanted.json:
        with open(wanted.json, "w", encoding="utf-8") as file:
            json.dump(lines, file, indent=1)


if __name__ == "__main__":
    main()
