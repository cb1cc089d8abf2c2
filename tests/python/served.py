"""A server for the tests beside this file: a small model that is trained on the spot, `deltarule serve` over it, and requests."""
import http.client, json, os, signal, subprocess, sys, tempfile, time

TEMPLATE = ("{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}<assistant>{% endif %}")

TEMPLATE_WITH_TOOLS = """{% if tools %}<tools>{% for t in tools %}{{ t | tojson }}{% endfor %}</tools>{% endif %}
{%- for m in messages %}<{{ m.role }}>{% if m.tool_calls %}{% for c in m.tool_calls %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}{% else %}{{ m.content }}{% endif %}
{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"""


def make_model(command, folder, name="tiny", steps=60, sizes=()):
    """Trains a model of bytes on numbered lines and gives it a chat template; returns its folder."""
    corpus = os.path.join(folder, "corpus")
    os.makedirs(corpus, exist_ok=True)
    for letter in "abcdef":
        with open(os.path.join(corpus, letter + ".txt"), "w") as file:
            for i in range(1, 301):
                file.write(f"line {i} of file {letter}: the state is a matrix\n")
    model = os.path.join(folder, name)
    flags = dict(corpus=corpus, out=model, hidden=64, layers=2, heads=2, batch=4, steps=steps, evaluate_every=0, save_every=0)
    flags["seq-len"] = 128
    arguments = [f"--{key.replace('_', '-')}={value}" for key, value in flags.items()]
    subprocess.run([command, "train", *arguments, *sizes], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open(os.path.join(model, "chat_template.jinja"), "w") as file:
        file.write(TEMPLATE)
    return model


class Server:
    """A running server; as a context it is stopped at the end and must end with status 0."""

    def __init__(self, command, *arguments, environment=None):
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([command, "serve", *arguments, "--port", "0"], stdout=subprocess.PIPE,
                                        stderr=self.errors, text=True, env={**os.environ, **(environment or {})})
        line = self.process.stdout.readline()
        if "listening on" not in line:
            raise SystemExit(f"the server did not start: {self.log()}")
        self.port = int(line.rsplit(":", 1)[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.stop()

    def stop(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
        status = self.process.wait(timeout=600)
        log = self.log()
        self.errors.close()
        if status != 0 or "Sanitizer" in log:
            raise SystemExit(f"the server ended with status {status}:\n{log[-4000:]}")

    def log(self):
        # by pread, since the server writes where the offset is that they share
        return os.pread(self.errors.fileno(), os.fstat(self.errors.fileno()).st_size, 0).decode(errors="replace")

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)

    def ask(self, method, path, body=None, headers=None):
        """The status and the body of a response; a body that is an object goes as JSON."""
        connection = self.connect()
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        text = response.read()
        connection.close()
        return response.status, text

    def post(self, path, body, **options):
        """The object of a response that must be 200."""
        status, text = self.ask("POST", path, body, **options)
        if status != 200:
            raise AssertionError(f"{status}: {text.decode()}")
        return json.loads(text)

    def complete(self, prompt, **options):
        return self.post("/v1/completions", {"prompt": prompt, "temperature": 0, **options})["choices"]

    def stream(self, path, body):
        """The objects of a stream of events, which must end with [DONE]."""
        status, text = self.ask("POST", path, {**body, "stream": True})
        if status != 200:
            raise AssertionError(f"{status}: {text.decode()}")
        events = text.decode().split("\n\n")
        assert events[-1] == "" and events[-2] == "data: [DONE]", events[-2:]
        return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]

    def metric(self, name):
        for line in self.ask("GET", "/metrics")[1].decode().splitlines():
            if line.startswith(f"deltarule_{name} "):
                return float(line.split()[-1])
        raise AssertionError(f"/metrics has no {name}")

    def wait_for(self, condition, what):
        until = time.monotonic() + 300  # the machine may be busy
        while time.monotonic() < until:
            if condition():
                return
            time.sleep(0.005)
        raise AssertionError(what)


def run_tests(names):
    """Runs a script's functions test_NAME over one server; the command line has the command, and names where not all shall run."""
    command, wanted = sys.argv[1], sys.argv[2:]
    tests = {name.removeprefix("test_"): test for name, test in names.items() if name.startswith("test_")}
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(command, folder)
        with Server(command, model, "--context", "4096", "--max-body", "1") as server:
            for name in wanted or tests:
                began = time.monotonic()
                tests[name](server, command, model)
                print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)
