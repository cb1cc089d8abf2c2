"""What Triton's autotuner does with a kernel's configurations, for programs that compare with flash-linear-attention.

Its layers have some forty kernels with up to 36 configurations each. Triton compiles them one after the other, about a second each, and
measures each for an eighth of a second, before the first training step ends. The functions here change the autotuner of the running
process; import them before flash-linear-attention.
"""
import functools
import math
import subprocess
import sys
import time


def first_that_runs(part=0, parts=0):
    """Each kernel takes the first of its configurations that this GPU can run, and nothing is measured or kept on disk.

    Results do not depend on the configuration. With parts, this process also compiles every parts-th configuration from `part` on into
    Triton's cache folder, which others read, and runs one of these: so many processes compile what one of them then measures.
    """
    from triton.runtime.autotuner import Autotuner
    pruned = Autotuner.prune_configs

    def prune_configs(self, kwargs):
        self.cache_results = False
        self.__dict__["do_bench"] = lambda call, quantiles: (call(), [0.0] * 3)[1]  # called once
        configs, given = pruned(self, kwargs), {**self.nargs, **kwargs}
        own = configs[part::parts] if parts else []
        if parts:
            begin, failed = time.perf_counter(), 0
            for config in own:
                try:
                    self.fn.run(**{**given, **config.all_kwargs(), "warmup": True})  # compiles only
                except Exception:  # a configuration that cannot be compiled is left to the process that measures
                    failed += 1
            print(f"{self.base_fn.__name__}: {len(own)} of {len(configs)} configurations, {failed} failed, "
                  f"{time.perf_counter() - begin:.1f} s", flush=True)
        return [next((config for config in own + configs if math.isfinite(self._bench(config=config, **given)[0])), configs[0])]

    Autotuner.prune_configs = prune_configs


def briefly(warmup=4, rep=20):
    """Configurations are measured for some milliseconds each instead of 125."""
    import triton.testing
    triton.testing.do_bench = functools.partial(triton.testing.do_bench, warmup=warmup, rep=rep)


def compile_first(jobs):
    """Runs this program again in `jobs` processes, each with --part I/JOBS behind its arguments, for which it is to call first_that_runs
    and end; then measures configurations briefly here."""
    begin = time.perf_counter()
    parts = [subprocess.Popen([sys.executable, *sys.argv, "--part", f"{i}/{jobs}"], stdout=subprocess.DEVNULL) for i in range(jobs)]
    failed = sum(one.wait() != 0 for one in parts)
    print(f"kernels compiled by {jobs} processes, {failed} failed, in {time.perf_counter() - begin:.0f} s", flush=True)
    briefly()
