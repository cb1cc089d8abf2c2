"""llama.cpp's server on a free port of 127.0.0.1, by the Python package xllamacpp, which brings it built. Prints the port when it is ready.

    python bench/llama_server.py MODEL.gguf SLOTS TOKENS     TOKENS: of a slot's context
"""
import os, signal, sys, xllamacpp

model, slots, tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
parameters = xllamacpp.CommonParams()
parameters.model.path = model
parameters.port = 0
parameters.n_parallel = slots
parameters.n_ctx = slots * tokens
parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = os.cpu_count()
parameters.warmup = False
server = xllamacpp.Server(parameters)
print("listening on", server.listening_address, flush=True)
signal.sigwait([signal.SIGTERM, signal.SIGINT])
os._exit(0)
