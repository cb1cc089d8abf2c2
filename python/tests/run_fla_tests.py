#!/usr/bin/env python3
"""Runs flash-linear-attention's own tests against deltarule's operators of the same names.

    run_fla_tests.py CLONE [--package deltarule.fla] [--path DIR] [--files gdn,kda,...] [--fla installed|clone] [--device auto|cpu|cuda]
                     [--reference auto|naive|fla] [--limit N] [--timeout S] [--within S] [--jobs N] [--parts N] [--memory GB]
                     [--first-configuration] [-k EXPR] [--json FILE] [--again FILE] [--keep] [--list]

CLONE: a git directory (bare or not) or a checkout of flash-linear-attention's repository, whose packages hold no tests; only its
tests/ is used, and its fla/ with --fla clone. --package: the importable module with FLA's function names (found on --path or in the environment).

How it works. Each file runs in a pytest process of its own, in which this file is a plugin. For each test it puts into the test
module, by the test's role, for each function of FLA that the package has:
  under test   ours (chunk_* in tests of chunk forms, fused_recurrent_* in tests of recurrent forms), and a counter around it: a test
               that passes without a call of ours is reported as `idle`, not as passed;
  reference    where the test compares with another kernel: FLA's own (reference fla, needs a GPU) or a plain loop of this file
               (reference naive, any device). FLA's naive.py functions are always left alone.
Layers and models (tests/layers, tests/models) need FLA's Triton convolutions and norms, so a GPU: there ours replace FLA's functions
in every loaded fla module. Tests of FLA's internals (gates, WY, index helpers, other backends) are counted as `internal`; tests whose
arguments are larger than --limit elements of B T HV K V as `large` (on CPU the plain loops keep every state for autograd).
A test in which ours refuses an argument that no rule has, or a rule that backend cuda has not (NotImplementedError), is counted as
`refused`. The last lines count what was refused and skipped by its reason, and internal tests by their names.
On a GPU most of the time goes into the compilation of FLA's kernels: --jobs runs several processes on it, --parts divides each file's
tests between so many of them, and --first-configuration takes the first of each kernel's configurations that runs, unmeasured.
Processes give the GPU's memory back after each test, and --memory bounds what one may take. Tests that found none run again at the
end, one after the other and without the bound. --again FILE, the --json of an earlier run, runs only what failed there or was cut, and
counts the rest as it was.
Also told: the worst ratio of an error to its tolerance (FLA's assert_close) in a file. FLA_CI is unset, which would turn failures into warnings.
"""
import argparse
import collections
import concurrent.futures
import functools
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

# ---- which functions there are: module of FLA, names ------------------------------------------------------------------------------
FUNCTIONS = {
    "fla.ops.gated_delta_rule": "chunk_gated_delta_rule chunk_gdn fused_recurrent_gated_delta_rule fused_recurrent_gdn",
    "fla.ops.kda": "chunk_kda fused_recurrent_kda",
    "fla.ops.delta_rule": "chunk_delta_rule fused_recurrent_delta_rule fused_chunk_delta_rule",
    "fla.ops.gdn2": "chunk_gdn2 fused_recurrent_gdn2",
    "fla.ops.gated_delta_product": "chunk_gated_delta_product",
    "fla.ops.comba": "chunk_comba fused_recurrent_comba",
    "fla.ops.generalized_delta_rule": "chunk_dplr_delta_rule fused_recurrent_dplr_delta_rule chunk_iplr_delta_rule fused_recurrent_iplr_delta_rule",
    "fla.ops.rwkv7": "chunk_rwkv7 fused_recurrent_rwkv7 fused_mul_recurrent_rwkv7",
    "fla.ops.rwkv7.fused_recurrent": "fused_mul_recurrent_rwkv7 fused_recurrent_rwkv7",
    "fla.ops.mesa_net": "chunk_mesa_net mesa_net_decoding_one_step",
    "fla.ops.gla": "chunk_gla fused_recurrent_gla fused_chunk_gla",
    "fla.ops.simple_gla": "chunk_simple_gla fused_chunk_simple_gla fused_recurrent_simple_gla parallel_simple_gla",
    "fla.ops.retention": "chunk_retention fused_chunk_retention fused_recurrent_retention parallel_retention",
    "fla.ops.linear_attn": "chunk_linear_attn fused_chunk_linear_attn fused_recurrent_linear_attn",
    "fla.ops.lightning_attn": "chunk_lightning_attn fused_recurrent_lightning_attn",
    "fla.ops.precond_gated_delta_rule": "chunk_precond_gated_delta_rule fused_recurrent_precond_gated_delta_rule",
    "fla.ops.precond_kda": "chunk_precond_kda fused_recurrent_precond_kda",
}
OPS = ("gdn kda delta gdn2 delta_product gdp comba dplr_delta rwkv7 mesa gla simple_gla retention linear_attn precond_gated_delta "
       "precond_kda iplr_delta lightning_attn").split()
LAYERS = "gated_deltanet layer_cache_layer_idx attn_varlen_pack_layout".split()
MODELS = ("gated_deltanet deltanet kda gated_deltaproduct comba mesanet precond_gated_deltanet precond_kda gla retnet linear_attn "
          "rwkv7").split()

# Tests of what is FLA's own business.
INTERNAL = re.compile(r"prepare_wy|flash_qla|flash_kda|^test_gate$|cumsum|_guard$|verifier|triton_ascend|channel_mixing|addcmul|fused_k_update|"
                      r"gate_output_correction|intermediate_states|vllm_decode|simple_gla_to_mamba2|safe_gate_multihead|sm120|^test_naive_|"
                      r"^test_recurrent_fwd$|_parallel|^test_parallel")
# Tests of layers and models that compute no recurrence, and layers that no rule of ours is.
NO_RECURRENCE = {"test_cache_requires_layer_idx"}
NO_RULE = ("gated-slot-attention", "[mamba]", "[mamba2]", "[rwkv6]")  # mamba2 calls mamba_ssm or computes itself
# Roles that the names do not tell: test -> (under test, reference)
ROLES = {
    "test_fused_mul_recurrent_fwd": ({"fused_mul_recurrent_rwkv7"}, {"fused_recurrent_dplr_delta_rule"}),
    "test_chunk_wrapper_chunk_size": ({"chunk_rwkv7"}, {"chunk_dplr_delta_rule"}),
    "test_decoding_one_step": ({"mesa_net_decoding_one_step"}, set()),
    "test_chunk_matches_fused_recurrent": ({"chunk_gdn2", "fused_recurrent_gdn2"}, set()),
}
# In these files every function is compared with a plain loop, so all of them are under test.
ALL_UNDER_TEST = {"test_linear_attn.py"}


def is_reference(name, test):
    """Whether a test uses that function to hold another against."""
    if test in ROLES:
        return name in ROLES[test][1]
    return name.startswith("fused_recurrent_") and "recurrent" not in test


# ---- plain loops -------------------------------------------------------------------------------------------------------------------


SEGMENT = 64  # tokens whose states a backward keeps at once


def scan_segment(S, scale, q, k, v, g, beta, read, a, b):
    """Outputs of some tokens, and the state after them."""
    import torch
    out = []
    for t in range(q.shape[1]):
        extra = None if a is None else torch.einsum("bhk,bhv->bhkv", b[:, t], torch.einsum("bhk,bhkv->bhv", a[:, t], S))
        if g is not None:
            gt = g if g.dim() == 1 else g[:, t]
            S = S * gt.exp()[(..., None, None) if gt.dim() < 3 else (..., None)]
        if extra is not None:
            S = S + extra
        new = v[:, t] if read is None else v[:, t] - torch.einsum("bhk,bhkv->bhv", read[:, t], S)
        if beta is not None:
            new = new * (beta[:, t] if beta.dim() == 4 else beta[:, t, :, None])
        S = S + torch.einsum("bhk,bhv->bhkv", k[:, t], new)
        out.append(torch.einsum("bhk,bhkv->bhv", q[:, t], S) * scale)
    return torch.stack(out, 1), S


def scan(q, k, v, g=None, beta=None, read=None, a=None, b=None, scale=None, initial_state=None, final=True, cu_seqlens=None, l2=False,
         v_first=False, dtype=None):
    """S = exp(g) S [+ b (a^T S_before)]; S += beta k (v - S^T read)^T, or k v^T without read; o = scale S^T q. g scalar or channel, [..] or [H]."""
    import torch
    from torch.utils.checkpoint import checkpoint
    dtype = dtype or q.dtype
    if cu_seqlens is not None:
        ends = cu_seqlens.tolist()
        cut = lambda x, i: x if x is None or x.dim() < 3 else x[:, ends[i]:ends[i + 1]]
        parts = [scan(*(cut(x, i) for x in (q, k, v, g, beta, read, a, b)), scale, None if initial_state is None else initial_state[i:i + 1], True,
                      None, l2, v_first, dtype) for i in range(len(ends) - 1)]
        return torch.cat([x for x, _ in parts], 1), (torch.cat([x for _, x in parts]) if final else None)
    f = lambda x: None if x is None else x.float()
    q, k, v, g, beta, read, a, b = map(f, (q, k, v, g, beta, read, a, b))
    if l2:
        norm = lambda x: None if x is None else x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)
        q, k, read = norm(q), norm(k), (norm(k) if read is k else norm(read))
    B, T, H, K = q.shape
    HV, V = v.shape[-2:]
    rep = lambda x: x if x is None or x.shape[2] == HV else x.repeat_interleave(HV // x.shape[2], 2)
    q, k, read, a, b = map(rep, (q, k, read, a, b))
    scale = K ** -0.5 if scale is None else scale
    S = q.new_zeros(B, HV, K, V)
    if initial_state is not None:
        S = S + (initial_state.float().transpose(-1, -2) if v_first else initial_state.float())
    out, each = [], lambda x, begin: x if x is None or x.dim() < 3 else x[:, begin:begin + SEGMENT]
    for begin in range(0, T, SEGMENT):
        parts = [each(x, begin) for x in (q, k, v, g, beta, read, a, b)]
        one, S = checkpoint(scan_segment, S, scale, *parts, use_reentrant=False) if torch.is_grad_enabled() else scan_segment(S, scale, *parts)
        out.append(one)
    o = torch.cat(out, 1) if out else v.new_zeros(B, 0, HV, V)
    if not final:
        S = None
    elif v_first:
        S = S.transpose(-1, -2)
    return o.to(dtype), S


def plain_references():
    import torch

    def gamma(q):
        return (1 - 2.0 ** (-5.0 - torch.arange(q.shape[2], dtype=torch.float, device=q.device))).log()

    def delta(q, k, v, beta=None, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False, cu_seqlens=None, **_):
        beta = torch.ones(v.shape[:-1], device=v.device) if beta is None else beta
        return scan(q, k, v, None, beta, k, scale=scale, initial_state=initial_state, final=output_final_state, cu_seqlens=cu_seqlens, l2=use_qk_l2norm_in_kernel)

    def gdn(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False, state_v_first=False, cu_seqlens=None, **_):
        return scan(q, k, v, g, beta, k, scale=scale, initial_state=initial_state, final=output_final_state, cu_seqlens=cu_seqlens,
                    l2=use_qk_l2norm_in_kernel, v_first=state_v_first)

    def gla(q, k, v, gk=None, gv=None, scale=None, initial_state=None, output_final_state=False, reverse=False, state_v_first=False, cu_seqlens=None, **_):
        assert gv is None and not reverse
        return scan(q, k, v, gk, scale=scale, initial_state=initial_state, final=output_final_state, cu_seqlens=cu_seqlens, v_first=state_v_first)

    def simple(q, k, v, g=None, g_gamma=None, scale=None, initial_state=None, output_final_state=False, reverse=False, state_v_first=False, cu_seqlens=None, **_):
        assert not reverse
        return scan(q, k, v, g if g_gamma is None else g_gamma, scale=scale, initial_state=initial_state, final=output_final_state, cu_seqlens=cu_seqlens,
                    v_first=state_v_first)

    def retention(q, k, v, scale=None, initial_state=None, output_final_state=False, reverse=False, state_v_first=False, cu_seqlens=None, **_):
        return simple(q, k, v, None, gamma(q), scale, initial_state, output_final_state, reverse, state_v_first, cu_seqlens)

    def dplr(q, k, v, a, b, gk, scale=None, initial_state=None, output_final_state=False, reverse=False, cu_seqlens=None, **_):
        return scan(q, k, v, gk, a=a, b=b, scale=scale, initial_state=initial_state, final=output_final_state, cu_seqlens=cu_seqlens)

    def lightning(q, k, v, layer_idx, num_layers, scale=None, initial_state=None, output_final_state=False, reverse=False, cu_seqlens=None):
        H = q.shape[2]
        slope = -(8 / H * (1 - layer_idx / num_layers)) * torch.arange(H, dtype=torch.float, device=q.device)
        return simple(q, k, v, None, slope, scale, initial_state, output_final_state, reverse, cu_seqlens=cu_seqlens)

    return {"fused_recurrent_delta_rule": delta, "fused_recurrent_gla": gla, "fused_recurrent_simple_gla": simple, "fused_recurrent_retention": retention,
            "fused_recurrent_dplr_delta_rule": dplr, "chunk_dplr_delta_rule": dplr, "chunk_gated_delta_rule": gdn, "chunk_delta_rule": delta,
            "fused_recurrent_gated_delta_rule": gdn, "fused_recurrent_lightning_attn": lightning}


# ---- the plugin: active where FLA_HARNESS is set --------------------------------------------------------------------------------------
SETTINGS = json.loads(os.environ.get("FLA_HARNESS", "null"))


class Plugin:
    def __init__(self, settings):
        import torch
        self.settings, self.torch = settings, torch
        if settings["first"] and torch.cuda.is_available():
            sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench"))
            importlib.import_module("triton_tuning").first_that_runs()
        if settings["memory"] and torch.cuda.is_available():
            all_memory = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, settings["memory"] * 1e9 / all_memory))
        self.ours = importlib.import_module(settings["package"])
        self.cuda = torch.cuda.is_available()
        self.reference = settings["reference"]
        if self.reference == "auto":
            self.reference = "fla" if self.cuda else "naive"
        self.calls, self.worst, self.records = 0, {}, open(settings["records"], "a", encoding="utf-8")
        self.shim_moved_modules()
        if not self.cuda:  # FLA says "cuda" even where there is none, and tests take it from fla.utils
            for name in ("fla.utils", "fla.utils.hardware"):
                module = sys.modules.get(name) or importlib.import_module(name) if name == "fla.utils" else sys.modules.get(name)
                if module is not None and getattr(module, "device", None) is not None:
                    module.device, module.device_torch_lib = "cpu", torch.cpu
        self.originals, self.missing = {}, []
        for module, names in FUNCTIONS.items():
            try:
                loaded = importlib.import_module(module)
            except Exception as reason:  # an optional part of FLA may be absent
                self.missing.append(f"{module}: {reason}")
                continue
            for name in names.split():
                if hasattr(loaded, name):
                    self.originals[name] = getattr(loaded, name)
        self.replacements = {name: self.counted(name, getattr(self.ours, name)) for name in self.originals if hasattr(self.ours, name)}
        self.plain = plain_references()
        try:  # a reference of FLA's that is itself made of kernels, whose backward FLA refuses on Hopper before Triton 3.7.1
            made = importlib.import_module("fla.ops.gated_delta_product.chunk_ref")
            made.chunk_gated_delta_rule, made.chunk_delta_rule = self.plain["chunk_gated_delta_rule"], self.plain["chunk_delta_rule"]
        except ImportError:
            pass

    def shim_moved_modules(self):
        """Names that tests of FLA 0.5 import and that 0.6 has elsewhere."""
        for old, new in {"fla.ops.backends": "fla.backends", "fla.modules.l2norm": "fla.modules.norm.l2norm"}.items():
            if old not in sys.modules:
                try:
                    importlib.import_module(old)
                except ImportError:
                    try:
                        sys.modules[old] = importlib.import_module(new)
                    except ImportError:
                        pass

    def counted(self, name, function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            self.calls += 1
            return function(*args, **kwargs)
        return call

    def tell(self, **record):
        self.records.write(json.dumps(record) + "\n")
        self.records.flush()

    # -- collection
    def size_of(self, item):
        p = getattr(item, "callspec", None)
        p = dict(p.params) if p else {}
        cu = p.get("cu_seqlens")
        number = lambda x, other: x if isinstance(x, (int, float)) and not isinstance(x, bool) else other
        T = cu[-1] if isinstance(cu, (list, tuple)) else number(p.get("T"), 1)
        D = number(p.get("D"), 64)
        K, V = number(p.get("K"), D), number(p.get("V"), number(p.get("D"), number(p.get("K"), 64)))
        V *= number(p.get("expand_ratio"), 1)
        H = max(number(p.get("H"), 1), number(p.get("HV"), 1), number(p.get("Hq"), 1))
        return number(p.get("B"), 1) * T * H * K * V * number(p.get("num_householder"), 1)

    def pytest_collection_modifyitems(self, config, items):
        only = self.settings["only"]
        left = [item for item in items if item.name not in self.settings["done"]]
        items[:] = left[self.settings["part"]::self.settings["parts"]] if only is None else [item for item in items if item.name in only]
        kept, dropped = [], []
        for item in items:
            test = getattr(item, "originalname", None) or item.name.split("[")[0]
            size, why = self.size_of(item), None
            if "/ops/" not in str(item.fspath) and (test in NO_RECURRENCE or any(name in item.name for name in NO_RULE)):
                why = "internal"
            elif "/ops/" in str(item.fspath) and (INTERNAL.search(test) or (test == "test_layer" and not self.cuda)):
                why = "internal"  # a layer of FLA's has Triton kernels around ours
            elif self.settings["limit"] and size > self.settings["limit"]:
                why = "large"
            if why:
                self.tell(test=item.name, outcome=why)
                dropped.append(item)
                continue
            if not self.cuda:  # marks that say CUDA where any device would do
                item.own_markers[:] = [m for m in item.own_markers if not (m.name == "skipif" and "CUDA required" in str(m.kwargs.get("reason")))]
            kept.append(item)
        items[:] = kept
        if dropped:
            config.hook.pytest_deselected(items=dropped)

    # -- one test
    def pytest_runtest_setup(self, item):
        self.calls, self.worst[item.nodeid], self.undo = 0, (0.0, ""), []
        if self.cuda:
            self.torch.cuda.reset_peak_memory_stats()
        test = getattr(item, "originalname", None) or item.name.split("[")[0]
        module = item.module
        ops = "/ops/" in str(item.fspath).replace(os.sep, "/")
        inside = not ops or test == "test_layer"  # ours are called by FLA's layers, not by the test
        if inside:
            importlib.import_module("fla.layers")
        modules = [m for n, m in list(sys.modules.items()) if inside and m is not None and (n == "fla" or n.startswith("fla."))] + [module]
        for where in modules:
            for name, original in self.originals.items():
                now = where.__dict__.get(name)
                if now is None or not (now is original or getattr(now, "__wrapped__", None) is original or where is module):
                    continue
                new = None
                if ops and os.path.basename(str(item.fspath)) not in ALL_UNDER_TEST and is_reference(name, test):
                    new = self.plain.get(name) if self.reference == "naive" else None
                    if new is None and self.reference == "naive":
                        new = self.missing_reference(name)
                elif name in self.replacements:
                    new = self.replacements[name]
                if new is not None:
                    self.undo.append((where, name, now))
                    setattr(where, name, new)
        params = getattr(getattr(item, "callspec", None), "params", {})  # functions given as parameters
        for key, value in params.items():
            for name, original in self.originals.items():
                if value is original and name in self.replacements:
                    item.callspec.params[key] = self.replacements[name]
                    if key in getattr(item, "funcargs", {}):
                        item.funcargs[key] = self.replacements[name]
        close = getattr(module, "assert_close", None)
        if close is not None:
            def checked(prefix, ref, tri, ratio, *args, **kwargs):
                try:
                    d = (ref.detach().double() - tri.detach().double()).flatten()
                    error = (d.square().mean().sqrt() / (ref.detach().double().flatten().square().mean().sqrt() + 1e-8)).item()
                    if d.abs().max().item() > 1e-6 and ratio and error / ratio > self.worst[item.nodeid][0]:
                        self.worst[item.nodeid] = (error / ratio, str(prefix).strip())
                except Exception:  # shapes that differ: the check itself will say so
                    pass
                return close(prefix, ref, tri, ratio, *args, **kwargs)
            self.undo.append((module, "assert_close", close))
            module.assert_close = checked

    def missing_reference(self, name):
        def refuse(*args, **kwargs):
            import pytest
            pytest.skip(f"no plain reference for {name} here: run with --reference fla on a GPU")
        return refuse

    def pytest_runtest_teardown(self, item):
        for where, name, before in reversed(getattr(self, "undo", [])):
            setattr(where, name, before)
        self.undo = []
        if self.cuda:  # other processes want what this one has cached
            self.torch.cuda.empty_cache()

    def pytest_runtest_logreport(self, report):
        if report.when == "setup" and report.outcome != "passed" or report.when == "call":
            outcome = report.outcome
            if outcome == "passed" and self.calls == 0:
                outcome = "idle"
            text = ""
            if report.outcome == "failed":
                text = str(getattr(report.longrepr, "reprcrash", None) and report.longrepr.reprcrash.message or report.longrepr).strip().splitlines()
                text = text[0][:300] if text else ""
                if text.startswith("NotImplementedError") and ("computed here" in text or "use backend cpu" in text):
                    outcome = "refused"
            elif report.outcome == "skipped":
                text = str(report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr)[:200]
            worst = self.worst.get(report.nodeid, (0.0, ""))
            self.tell(test=report.nodeid.split("::")[-1], outcome=outcome, seconds=round(report.duration, 2), calls=self.calls, worst=worst[0], of=worst[1], text=text,
                      gigabytes=self.torch.cuda.max_memory_reserved() / 1e9 if self.cuda else 0)

    def pytest_report_header(self, config):
        lacking = sorted(set(self.originals) - set(self.replacements))
        return [f"deltarule: {self.ours.__file__}; reference {self.reference}; FLA {importlib.import_module('fla').__file__}",
                "not in the package: " + (" ".join(lacking) or "none")] + self.missing


def pytest_configure(config):
    if SETTINGS is not None and not config.pluginmanager.has_plugin("deltarule-fla"):
        config.pluginmanager.register(Plugin(SETTINGS), "deltarule-fla")


# ---- the driver --------------------------------------------------------------------------------------------------------------------------


def export(clone, commit, folders, to):
    """Copies folders of a git directory or a checkout."""
    if os.path.isdir(os.path.join(clone, "tests")) and commit == "HEAD":
        for folder in folders:
            shutil.copytree(os.path.join(clone, folder), os.path.join(to, folder), dirs_exist_ok=True)
        return "checkout"
    for git in (clone, os.path.join(clone, "repo"), os.path.join(clone, ".git")):
        found = subprocess.run(["git", "-C", git, "rev-parse", commit], capture_output=True, text=True, check=False)
        if found.returncode == 0:
            break
    else:
        sys.exit(f"{clone} is no git directory that has {commit}, and no checkout")
    archive = subprocess.Popen(["git", "-C", git, "archive", commit, *folders], stdout=subprocess.PIPE)
    subprocess.run(["tar", "x", "-C", to], stdin=archive.stdout, check=True)
    if archive.wait() != 0:
        sys.exit("git archive failed")
    return found.stdout.strip()


def files_of(wanted):
    named = {name: f"tests/ops/test_{name}.py" for name in OPS}
    named.update({f"layer:{name}": f"tests/layers/test_{name}.py" for name in LAYERS})
    named.update({f"model:{name}": f"tests/models/test_modeling_{name}.py" for name in MODELS})
    if wanted == "ops":
        return {name: file for name, file in named.items() if ":" not in name}
    if wanted == "all":
        return named
    chosen = {}
    for name in wanted.split(","):
        if name in ("layers", "models"):
            chosen.update({x: f for x, f in named.items() if x.startswith(name[:-1])})
        elif name in named:
            chosen[name] = named[name]
        else:
            sys.exit(f"no file is named {name}; there are: ops, layers, models, all, {', '.join(named)}")
    return chosen


def run_part(file, wanted, work, settings, part, until):
    """The records of a part of a file's tests, how pytest ended, its seconds and its log."""
    name = f"{os.path.basename(file)}.{part}"
    records, log = os.path.join(work, name + ".jsonl"), os.path.join(work, name + ".log")
    open(records, "w", encoding="utf-8").close()
    here = os.path.dirname(os.path.abspath(__file__))
    path = [here] + ([work] if wanted.fla == "clone" else []) + [os.path.abspath(folder) for folder in wanted.path or []]
    env = {**os.environ, "FLA_HARNESS": json.dumps({**settings, "records": records, "part": part}), "PYTHONDONTWRITEBYTECODE": "1",
           "PYTHONPATH": os.pathsep.join(path + [x for x in [os.environ.get("PYTHONPATH")] if x])}
    for name in ("FLA_CI_ENV", "FLA_CI"):
        env.pop(name, None)
    if wanted.device == "cpu":
        env["CUDA_VISIBLE_DEVICES"] = ""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "run_fla_tests", "-p", "no:cacheprovider", "--import-mode=importlib", "--rootdir", os.path.join(work, "tests"),
               "--tb=short", "-W", "ignore", os.path.join(work, file)] + (["-k", wanted.k] if wanted.k else [])
    started = time.time()
    left = min(wanted.timeout, until - started)
    if left <= 0:
        with open(log, "w", encoding="utf-8") as out:
            out.write("not begun within --within")
        return [], "timeout", 0.0, log
    with open(log, "w", encoding="utf-8") as out:
        process = subprocess.Popen(command, cwd=work, env=env, stdout=out, stderr=subprocess.STDOUT)
        try:
            code = process.wait(timeout=left)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = "timeout"
    with open(records, encoding="utf-8") as lines:
        found = [json.loads(line) for line in lines if line.strip()]
    return found, code, time.time() - started, log


def found_no_memory(record):
    return record["outcome"] == "failed" and re.search("OutOfMemory|out of memory|has no memory left", record.get("text", "")) is not None


def replaced(before, after):
    """Records of a file with those of the tests that ran again in the place of their first ones."""
    done = {record["test"] for record in after}
    return [record for record in before if record["test"] not in done] + after


def joined(parts):
    """The records of a file's parts, how they ended (the worst), their seconds and the log of the worst."""
    rank = lambda code: 0 if code in (0, 5) else 1 if code == 1 else 3 if code == "timeout" else 2
    _, code, _, log = max(parts, key=lambda one: rank(one[1]))
    return [record for found, *_ in parts for record in found], code, sum(one[2] for one in parts), log


def last_error(log):
    """The line of a log that says what went wrong."""
    with open(log, encoding="utf-8", errors="replace") as file:
        lines = [line.strip() for line in file if line.strip()]
    errors = [line for line in lines if re.match(r"(E\s+)?[\w.]*(Error|Exception|Interrupted)\b", line)]
    return (errors or lines or ["an empty log"])[-1][:300]


OUTCOMES = ("passed", "failed", "idle", "refused", "skipped", "internal", "large")


def tell_file(name, found, code, seconds, log, wanted):
    """Prints the line of a file and what went wrong in it; returns what is kept of it."""
    count = {x: sum(r["outcome"] == x for r in found) for x in OUTCOMES}
    worst = max((r.get("worst", 0) for r in found), default=0)
    ended = ("  TIMEOUT" if code == "timeout" else "  no test ran, see " + log if not found else
             f"  pytest ended with {code}, see {log}" if code not in (0, 1, 5) else "")
    print(f"{name:26} " + " ".join(f"{count[x]:8}" for x in OUTCOMES) + f" {worst:9.3f} {seconds:8.1f}" + ended, flush=True)
    if code not in (0, 1, 5) or not found:
        wanted.keep = True
        print("    " + last_error(log))
    told = {}
    for r in found:
        if r["outcome"] in ("failed", "idle", "refused"):
            told.setdefault((r["outcome"], r.get("text", "")[:150]), []).append(r["test"])
    for (outcome, text), tests in list(told.items())[:12]:
        print(f"    {outcome} x{len(tests)}: {tests[0]}: {text}", flush=True)
    return {"code": code, "seconds": seconds, "tests": found}


def print_reasons(everything):
    """How many tests were refused or skipped for each reason, and which tests are internal."""
    reasons = collections.Counter()
    for file in everything.values():
        for record in file["tests"]:
            if record["outcome"] in ("refused", "skipped"):
                reasons[record["outcome"], re.sub(r"^(Skipped|NotImplementedError): ", "", record.get("text", ""))[:120]] += 1
            elif record["outcome"] in ("internal", "large"):
                reasons[record["outcome"], record["test"].split("[")[0]] += 1
    for (outcome, reason), count in sorted(reasons.items(), key=lambda one: (one[0][0], -one[1])):
        print(f"{outcome:8} {count:5}  {reason}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("clone")
    p.add_argument("--commit", default="HEAD")
    p.add_argument("--package", default="deltarule.fla")
    p.add_argument("--path", action="append", help="folder to import the package from")
    p.add_argument("--files", default="ops", help="ops (default), layers, models, all, or names with commas")
    p.add_argument("--fla", choices=("installed", "clone"), default="installed")
    p.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    p.add_argument("--reference", choices=("auto", "naive", "fla"), default="auto")
    p.add_argument("--limit", type=float, default=None, help="most elements of B T HV K V; default 6e7 without a GPU, none with one")
    p.add_argument("--timeout", type=float, default=1800, help="seconds a file")
    p.add_argument("--within", type=float, default=float("inf"), help="seconds for all files; what has not ended then is told as a timeout")
    p.add_argument("--jobs", type=int, default=1, help="processes at once")
    p.add_argument("--parts", type=int, default=1, help="into which each file's tests are divided")
    p.add_argument("--memory", type=float, default=0, metavar="GB", help="of a GPU, that a process may take; 0: no bound")
    p.add_argument("--first-configuration", action="store_true", help="take each Triton kernel's first configuration that runs")
    p.add_argument("-k", default="", help="as pytest's")
    p.add_argument("--json")
    p.add_argument("--again", metavar="FILE", help="the --json of an earlier run: only what failed there or was cut")
    p.add_argument("--keep", action="store_true", help="keeps the folder with logs")
    p.add_argument("--list", action="store_true")
    wanted = p.parse_args()
    chosen = files_of(wanted.files)
    if wanted.list:
        print("\n".join(f"{name:26} {file}" for name, file in chosen.items()))
        return 0
    try:
        import torch
        cuda = torch.cuda.is_available() and wanted.device != "cpu"
    except ImportError:
        sys.exit("PyTorch is not installed here")
    if wanted.device == "cuda" and not cuda:
        sys.exit("no GPU here")
    limit = wanted.limit if wanted.limit is not None else (0 if cuda else 6e7)
    work = tempfile.mkdtemp(prefix="fla-tests-")
    commit = export(wanted.clone, wanted.commit, ["tests"] + (["fla"] if wanted.fla == "clone" else []), work)
    print(f"tests of {commit[:12]}, FLA {wanted.fla}, package {wanted.package}, {'GPU' if cuda else 'CPU'}, limit {limit or 'none'}; work in {work}")
    print(f"{'file':26} " + " ".join(f"{x:>8}" for x in OUTCOMES) + f" {'worst/tol':>9} {'seconds':>8}")
    everything, bad, until, begun = {}, 0, time.time() + wanted.within, {}
    settings = {"package": wanted.package, "reference": wanted.reference, "limit": limit, "parts": wanted.parts, "first": wanted.first_configuration,
                "memory": wanted.memory, "only": None, "done": []}
    earlier = {}
    if wanted.again:
        with open(wanted.again, encoding="utf-8") as file:
            earlier = json.load(file)["files"]
    judged = {name: [r for r in file["tests"] if r["outcome"] != "failed"] for name, file in earlier.items()}
    pool = concurrent.futures.ThreadPoolExecutor(wanted.jobs)
    for name, file in chosen.items():
        if not os.path.exists(os.path.join(work, file)):
            print(f"{name:26} not in this commit")
        elif ":" in name and not cuda:
            print(f"{name:26} needs a GPU: FLA's convolutions and norms around ours are Triton kernels")
        elif name in earlier and earlier[name]["code"] in (0, 1, 5) and len(judged[name]) == len(earlier[name]["tests"]):
            everything[name] = earlier[name]
        else:
            one = {**settings, "done": [r["test"] for r in judged.get(name, [])]}
            begun[name] = [pool.submit(run_part, file, wanted, work, one, part, until) for part in range(wanted.parts)]
    for name, parts in begun.items():
        everything[name] = tell_file(name, *joined([part.result() for part in parts]), wanted)
        everything[name]["tests"] += judged.get(name, [])
    for name, file in everything.items():
        names = sorted(record["test"] for record in file["tests"] if found_no_memory(record))
        if names:
            found, code, seconds, log = run_part(chosen[name], wanted, work, {**settings, "only": names, "memory": 0}, "again", until)
            tell_file(name + ", again", found, code, seconds, log, wanted)
            file["tests"] = replaced(file["tests"], found)
            file["code"] = code if file["code"] in (0, 1, 5) else file["code"]
    for file in everything.values():
        bad += sum(r["outcome"] in ("failed", "idle") for r in file["tests"]) + (file["code"] not in (0, 1, 5))
    if wanted.json:
        with open(wanted.json, "w", encoding="utf-8") as out:
            json.dump({"commit": commit, "files": everything}, out, indent=1)
    print_reasons(everything)
    total = {x: sum(r["outcome"] == x for f in everything.values() for r in f["tests"]) for x in OUTCOMES}
    print(f"{'all':26} " + " ".join(f"{total[x]:8}" for x in OUTCOMES))
    if wanted.keep:
        print(f"logs are in {work}")
    else:
        shutil.rmtree(work, ignore_errors=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
