"""A server for the benchmarks of this folder: started on a free port, measured, and ended."""
import os, signal, subprocess


def serve(command, model, flags, folder, measure):
    """What `measure(port, pid)` returns of `command serve model flags`, and whether the server ended as it should."""
    with open(os.path.join(folder, "log"), "w+") as log:
        server = subprocess.Popen([command, "serve", model, "--port=0", *flags], stdout=subprocess.PIPE, stderr=log, text=True)
        line = server.stdout.readline()
        if "listening on" not in line:
            log.seek(0)
            raise SystemExit(f"the server did not start: {log.read()}")
        try:
            result = measure(int(line.rsplit(":", 1)[1]), server.pid)
        finally:
            server.send_signal(signal.SIGTERM)
        status = server.wait(timeout=120)
        log.seek(0)
        said = log.read()
    if status == 0 and "Sanitizer" not in said:
        return result, True
    print(f"the server ended with status {status}: {said[-3000:]}")
    return result, False
