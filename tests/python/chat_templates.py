#!/usr/bin/env python3
"""Random chat templates and random messages: `deltarule chat-template` against Jinja2.

Draws templates (expressions with all operators, filters, tests and methods; for, if, set, macro, call, filter, with, raw,
comments, break, continue, trimming) and variables, renders them with Jinja2 in the environment that Hugging Face's
transformers gives to chat templates, and with the command, and prints what differs, with the seed that repeats it.

    tests/python/chat_templates.py COMMAND [--seeds A..B]
    tests/python/chat_templates.py --record tests/templates/snippets.json    renders the snippets of that file anew

Where Jinja2 fails the command must fail too. Numbers that need more than 64 bits and limits of the interpreter are counted
apart. Exit status 0: all the same; 1: something differs; 77: the package is not there, or has a version below 3.1.
"""
import argparse, datetime, json, os, random, subprocess, sys, tempfile

try:
    import jinja2
    import jinja2.ext
    import jinja2.sandbox
except ImportError:
    print("skipped: the Python package jinja2 is not installed")
    sys.exit(77)
if tuple(int(part) for part in jinja2.__version__.split(".")[:2]) < (3, 1):
    print(f"skipped: the Python package jinja2 is {jinja2.__version__}, older than 3.1")
    sys.exit(77)

NOW = 1700000000


class Generation(jinja2.ext.Extension):
    """{% generation %}: a block with names of its own."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("printed"), [], [], body).set_lineno(line)

    def printed(self, caller):
        return caller()


def environment():
    def refuse(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    made = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                        extensions=[Generation, "jinja2.ext.loopcontrols"])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = refuse
    made.globals["strftime_now"] = lambda form: datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(form)
    return made


# ---- random templates ------------------------------------------------------------------------------------------------------

TEXTS = ["", "a", "Hello World", " Sys \u00e9 ", "x,y,,z", "\n line\n\ttwo\r\n", "<|im_start|>", "{{ x }}", "12", "-3.5", "1e3", "0x1F", "1_000", " 7 ",
         "\u00df \u03a3\u0391\u03a3 \u01c6 \ufb01", "\U0001f469\u200d\U0001f4bb", "it's \"q\" \\", "abcabcabc", "a-b (c) [d] <e>", "True", "foo_bar.Baz", "nan", "\u0130\u0131", "\x0b\x1c\u2028",
         "&<>", "caf\u00e9 cafe\u0301", "0", "\u0664\u00b2\u00bd"]
KEYS = ["role", "content", "a", "b", "items", "name", "\u00fc", "x y", "keys", "n"]
FLOATS = [0.0, -0.0, 1.0, 2.5, -7.25, 1e16, 1e15, 123456.789, 1e-5, 0.0001, 1e22, 0.1, 3.14159, 1e300, 5e-324, 100000.0, 0.5, 1.5]
INTEGERS = [0, 1, 2, 3, -1, -7, 10, 255, 12345, 123456789012345678, 2**62]


def random_value(r, depth=2):
    kind = r.random()
    if depth == 0 or kind < 0.55:
        return r.choice([lambda: r.choice(TEXTS), lambda: r.choice(INTEGERS), lambda: r.choice(FLOATS), lambda: r.random() < 0.5, lambda: None])()
    if kind < 0.78:
        return [random_value(r, depth - 1) for _ in range(r.randrange(4))]
    return {r.choice(KEYS): random_value(r, depth - 1) for _ in range(r.randrange(4))}


def random_variables(r):
    message = lambda role: {"role": role, "content": r.choice(TEXTS)} if r.random() < 0.8 else {"role": role, "content": [{"type": "text", "text": r.choice(TEXTS)}]}
    made = {"messages": [message(r.choice(["system", "user", "assistant", "tool"])) for _ in range(r.randrange(5))],
            "tools": r.choice([None, [{"type": "function", "function": {"name": "get", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]]),
            "l": [r.choice(INTEGERS) for _ in range(r.randrange(6))], "w": [r.choice(TEXTS) for _ in range(r.randrange(6))],
            "m": [{"k": r.choice(TEXTS[:6]), "n": r.choice(INTEGERS[:7]), "f": {"g": r.choice([1, 2])}} for _ in range(r.randrange(5))],
            "d": {key: random_value(r) for key in r.sample(KEYS, r.randrange(5))}, "s": r.choice(TEXTS), "u": r.choice(TEXTS), "n": r.choice(INTEGERS), "f": r.choice(FLOATS),
            "t": True, "z": None, "any": random_value(r, 3)}
    return made


def quoted(r, text):
    text = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    mark = r.choice("'\"")
    return mark + text.replace(mark, "\\" + mark) + mark


class Drawer:
    """Expressions by the type that they most likely have."""

    def __init__(self, r):
        self.r = r
        self.names = []

    def pick(self, *makers):
        return self.r.choice(makers)()

    def text(self, depth):
        r = self.r
        if depth <= 0:
            return r.choice(["s", "u", quoted(r, r.choice(TEXTS)), "m[0].k", "w[0]", "messages[0]['content']", "messages[-1].role", "'a' 'b'"])
        t, i = lambda: self.text(depth - 1), lambda: self.integer(depth - 1)
        return self.pick(
            lambda: f"{self.atom(t())}.{r.choice(['strip()', 'lstrip()', 'rstrip()', 'upper()', 'lower()', 'title()', 'capitalize()', 'swapcase()', 'casefold()'])}",
            lambda: f"{self.atom(t())}.{r.choice(['strip', 'lstrip', 'rstrip'])}({quoted(r, r.choice(['ab', ' x', 'H', chr(233)]))})",
            lambda: f"{self.atom(t())}.replace({t()}, {t()}{r.choice(['', ', 1', ', 0', ', -1'])})",
            lambda: f"{self.atom(t())}.{r.choice(['removeprefix', 'removesuffix'])}({t()})",
            lambda: f"{self.atom(t())}.{r.choice(['ljust', 'rjust', 'center'])}({r.randrange(14)}{r.choice(['', ', ' + quoted(r, '*')])})",
            lambda: f"{self.atom(t())}.zfill({r.randrange(9)})",
            lambda: f"{quoted(r, r.choice([', ', '', '-']))}.join({self.texts(depth - 1)})",
            lambda: f"{self.atom(t())} ~ {self.atom(self.any(depth - 1))}", lambda: f"{self.atom(t())} + {self.atom(t())}",
            lambda: f"{self.atom(t())} * {r.randrange(-1, 4)}", lambda: f"{self.atom(t())}[{i()}]", lambda: f"{self.atom(t())}{self.slice(depth - 1)}",
            lambda: f"{self.atom(t())}|{r.choice(['trim', 'upper', 'lower', 'title', 'capitalize', 'e', 'string', 'reverse', 'safe', 'escape', 'urlencode', 'indent', 'first', 'last'])}",
            lambda: f"{self.atom(t())}|{r.choice(['trim', 'trim(%s)' % quoted(r, 'aH ')])}|replace({t()}, {t()})",
            lambda: f"{self.atom(t())}|indent({r.choice(['2', '2, true', '2, false, true', quoted(r, '> '), 'width=3', 'first=true'])})",
            lambda: f"{self.atom(t())}|truncate({r.choice(['5', '5, true', '3, true, %s' % quoted(r, '.'), '8, false, leeway=0', '4, end=%s' % quoted(r, '')])})",
            lambda: f"{self.atom(t())}|center({r.randrange(20)})", lambda: f"{self.atom(t())}|default({t()}{r.choice(['', ', true'])})",
            lambda: f"{self.atom(self.list(depth - 1))}|join({r.choice(['', quoted(r, ', ')])})", lambda: f"{self.atom(self.any(depth - 1))}|string",
            lambda: f"{self.atom(self.any(depth - 1))}|tojson{r.choice(['', '(indent=2)', '(indent=4)', '(sort_keys=true)', '(ensure_ascii=true)', '(separators=(%s, %s))' % (quoted(r, ','), quoted(r, ':'))])}",
            lambda: f"{t()} if {self.truth(depth - 1)} else {t()}", lambda: f"({t()})",
            lambda: f"{quoted(r, r.choice(['%s', '[%5s]', '%-6s|', '%r', '%%', '%s %s', '%d', '%05d', '%x', '%.2f', '%e', '%g', '%+d', '%10.3f']))} % {self.atom(self.any(depth - 1))}",
            lambda: f"{quoted(r, r.choice(['{}', '{0} {0}', '{:>8}', '{:^7}|', '{!r}', '{:05}', '{:.2f}', '{:,}', '{x}', '{{}}', '{:x}', '{:.3}', '{:+}', '{:%}', '{:e}', '{:g}', '{:*<6}']))}.format({self.any(depth - 1)}, x={i()})",
            lambda: f"strftime_now({quoted(r, r.choice(['%d %b %Y', '%Y-%m-%d', '%H:%M', '', '%A %j']))})",
            lambda: f"{self.atom(t())}.{r.choice(['split()', 'rsplit()', 'splitlines()'])}[{r.choice([0, -1])}]",
            lambda: f"{self.atom(t())}.{r.choice(['partition', 'rpartition'])}({t()})[{r.randrange(3)}]")

    def integer(self, depth):
        r = self.r
        if depth <= 0:
            return r.choice(["n", str(r.choice(INTEGERS[:9])), "l[0]", "m[0].n", "m[-1]['n']", "true", "0x1f", "1_0"])
        i, t = lambda: self.integer(depth - 1), lambda: self.text(depth - 1)
        return self.pick(
            lambda: f"{self.atom(i())} {r.choice(['+', '-', '*', '//', '%'])} {self.atom(i())}", lambda: f"-{self.atom(i())}", lambda: f"{self.atom(i())} ** {r.randrange(4)}",
            lambda: f"{self.atom(t())}|length", lambda: f"{self.atom(self.list(depth - 1))}|{r.choice(['length', 'count', 'sum', 'first', 'last', 'max', 'min'])}",
            lambda: f"{self.atom(t())}.{r.choice(['find', 'rfind', 'count', 'index'])}({t()}{r.choice(['', ', 1', ', 1, -1', ', -3'])})", lambda: f"{self.atom(self.any(depth - 1))}|int{r.choice(['', '(7)', '(default=-1)'])}",
            lambda: f"{self.atom(i())}|abs", lambda: f"{self.atom(t())}|wordcount", lambda: f"m|sum(attribute='n')", lambda: f"{self.atom(self.list(depth - 1))}.index({i()})",
            lambda: f"({i()})", lambda: f"{self.atom(self.list(depth - 1))}[{i()}]", lambda: f"{i()} if {self.truth(depth - 1)} else {i()}")

    def real(self, depth):
        r = self.r
        if depth <= 0:
            return r.choice(["f", repr(abs(r.choice(FLOATS[:12]))), "1e3", "2.50"])
        x = lambda: self.atom(self.r.choice([self.real, self.integer])(depth - 1))
        return self.pick(lambda: f"{x()} {r.choice(['+', '-', '*', '/', '//', '%'])} {x()}", lambda: f"{x()}|round{r.choice(['', '(1)', '(2)', '(-1)', '(1, %s)' % quoted(r, 'floor'), '(0, %s)' % quoted(r, 'ceil')])}",
                         lambda: f"{self.atom(self.any(depth - 1))}|float{r.choice(['', '(1.5)'])}", lambda: f"-{x()}", lambda: f"{x()}|abs")

    def slice(self, depth):
        r = self.r
        part = lambda: r.choice(["", str(r.randrange(-4, 5))])
        return f"[{part()}:{part()}{r.choice(['', ':', ':' + r.choice(['1', '2', '-1', '-2'])])}]"

    def texts(self, depth):
        return self.pick(lambda: "w", lambda: f"{self.atom(self.text(depth - 1))}.split({self.r.choice(['', quoted(self.r, ','), quoted(self.r, ' ') + ', 1'])})", lambda: "m|map(attribute='k')", lambda: f"w|map({quoted(self.r, self.r.choice(['upper', 'trim', 'length', 'string', 'nosuch']))})|map('string')")

    def list(self, depth):
        r = self.r
        if depth <= 0:
            return r.choice(["l", "w", "m", "messages", "[]", "[1, 2, 3]", "['b', 'A', 'c']", "(1, 'x')", "range(3)", "d", "any"])
        l = lambda: self.list(depth - 1)
        return self.pick(
            lambda: f"[{', '.join(self.any(depth - 1) for _ in range(r.randrange(4)))}]", lambda: f"{self.atom(l())}{self.slice(depth - 1)}", lambda: f"{self.atom(l())} + {self.atom(l())}",
            lambda: f"{self.atom(l())}|{r.choice(['list', 'reverse|list', 'sort', 'sort(reverse=true)', 'sort(case_sensitive=true)', 'unique|list', 'batch(2)|list', 'slice(2)|list', 'batch(2, 0)|list', 'slice(3, 0)|list', 'select|list', 'reject|list'])}",
            lambda: f"m|{r.choice(['sort', 'list'])}(attribute='n')" if r.random() < 0.5 else "m|sort(attribute='k,n')|map(attribute='n')|list",
            lambda: f"m|{r.choice(['selectattr', 'rejectattr'])}({quoted(r, r.choice(['n', 'k', 'f.g', 'nosuch']))}{r.choice(['', ', %s, %s' % (quoted(r, r.choice(['equalto', 'gt', 'in', 'ne', '==', 'lt', 'eq'])), self.any(0)), ', ' + quoted(r, r.choice(['defined', 'string', 'odd', 'none']))])})|list",
            lambda: f"{self.atom(l())}|{r.choice(['select', 'reject'])}({quoted(r, r.choice(['string', 'number', 'odd', 'defined', 'none', 'mapping', 'iterable', 'in']))}{r.choice(['', ', [1, 2]'])})|list",
            lambda: f"{self.atom(self.text(depth - 1))}.{r.choice(['split()', 'split(%s)' % quoted(r, 'a'), 'rsplit(%s, 1)' % quoted(r, ' '), 'splitlines()', 'splitlines(true)', 'split(none, 1)', 'partition(%s)' % quoted(r, ',')])}",
            lambda: f"range({', '.join(str(r.randrange(-3, 9)) for _ in range(r.randrange(1, 4)))})|list", lambda: f"d.{r.choice(['items', 'keys', 'values'])}()|list", lambda: "d|items|list",
            lambda: f"d|dictsort{r.choice(['', '(true)', '(reverse=true)'])}", lambda: f"m|groupby({quoted(r, r.choice(['n', 'k', 'f.g']))})", lambda: f"m|map(attribute={quoted(r, r.choice(['n', 'f.g', 'x']))}{r.choice(['', ', default=0'])})|list",
            lambda: f"{self.atom(l())} * {r.randrange(3)}", lambda: f"m|groupby('n')|map(attribute={quoted(r, r.choice(['grouper', 'list']))})|list", lambda: f"{self.atom(self.text(depth - 1))}|list")

    def dict(self, depth):
        r = self.r
        if depth <= 0:
            return r.choice(["d", "{}", "m[0]", "messages[0]", "{'a': 1}"])
        return self.pick(lambda: "{" + ", ".join(f"{quoted(r, r.choice(KEYS))}: {self.any(depth - 1)}" for _ in range(r.randrange(4))) + "}", lambda: f"dict({self.dict(depth - 1)}, a={self.any(depth - 1)})", lambda: f"dict(a={self.any(depth - 1)})", lambda: "d.copy()")

    def truth(self, depth):
        r = self.r
        if depth <= 0:
            return r.choice(["t", "true", "false", "z", "n", "s", "missing", "d.a", "l", "not t", "z is none"])
        x = lambda: self.atom(self.any(depth - 1))
        return self.pick(
            lambda: f"{x()} {r.choice(['==', '!='])} {x()}", lambda: f"{self.atom(self.integer(depth - 1))} {r.choice(['<', '<=', '>', '>=', '=='])} {self.atom(self.real(depth - 1))}",
            lambda: f"{self.atom(self.text(depth - 1))} {r.choice(['in', 'not in', '<', '==', '>='])} {self.atom(self.text(depth - 1))}", lambda: f"{x()} {r.choice(['in', 'not in'])} {self.atom(self.list(depth - 1))}",
            lambda: f"{self.atom(self.text(depth - 1))} in {self.atom(self.dict(depth - 1))}", lambda: f"{self.truth(depth - 1)} {r.choice(['and', 'or'])} {self.truth(depth - 1)}", lambda: f"not {self.truth(depth - 1)}",
            lambda: f"{x()} is {r.choice(['', 'not '])}{r.choice(['defined', 'undefined', 'none', 'string', 'number', 'integer', 'float', 'boolean', 'mapping', 'sequence', 'iterable', 'callable', 'true', 'false', 'odd', 'even', 'divisibleby 3', 'upper', 'lower', 'escaped', 'in [1, 2]', 'eq 1', 'sameas none', 'gt(2)'])}",
            lambda: f"{self.atom(self.text(depth - 1))}.{r.choice(['startswith', 'endswith'])}({self.text(depth - 1)})", lambda: f"{self.atom(self.text(depth - 1))}.{r.choice(['isdigit', 'isalpha', 'isspace', 'isupper', 'islower', 'isalnum', 'isascii'])}()",
            lambda: f"{self.atom(self.integer(depth - 1))} < {self.atom(self.integer(depth - 1))} < {self.atom(self.integer(depth - 1))}", lambda: f"({self.truth(depth - 1)})")

    def any(self, depth):
        r = self.r
        if self.names and r.random() < 0.25:
            return r.choice(self.names)
        if r.random() < 0.08:
            return r.choice(["missing", "missing.x", "d.nosuch", "d['nosuch']", "d.a.b", "none", "any", "l[99]", "d.get('a')", f"d.get('x', {self.text(0)})", "s.nosuch", "loop.index", "messages", "true.x"])
        return self.r.choice([self.text, self.text, self.integer, self.real, self.list, self.dict, self.truth])(depth)

    @staticmethod
    def atom(text):
        plain = text.replace("_", "a").replace(".", "a")
        return text if plain.isalnum() and not text[0].isdigit() else f"({text})"

    # ---- statements

    def tag(self, text):
        r = self.r
        begin, end = r.choice(["{% ", "{% ", "{%- ", "{%+ "]), r.choice([" %}", " %}", " -%}", " +%}" if r.random() < 0.3 else " %}"])
        return begin + text + end

    def blanks(self):
        return self.r.choice(["", "", "\n", "  ", "\n  ", " x\n", "\n\n", "\t", "y ", "<|im_end|>\n"])

    def block(self, depth, in_loop=False):
        names = list(self.names)
        made = "".join(self.blanks() + self.statement(depth, in_loop) for _ in range(self.r.randrange(1, 4))) + self.blanks()
        self.names = names
        return made

    def output(self):
        begin, end = self.r.choice([("{{ ", " }}"), ("{{ ", " }}"), ("{{- ", " -}}"), ("{{", "}}"), ("{{+ " if False else "{{ ", " -}}")])
        expression = self.any(self.r.choice([0, 1, 1, 2, 3]))
        return begin + expression + (" " if expression.endswith("}") else "") + end

    def statement(self, depth, in_loop):
        r = self.r
        if depth <= 0 or r.random() < 0.4:
            return self.output()
        e = lambda: self.any(r.choice([0, 1, 2]))
        kind = r.randrange(15)
        tag, block = self.tag, self.block
        if kind < 3:
            middle = tag(f"elif {self.truth(1)}") + block(depth - 1, in_loop) if r.random() < 0.3 else ""
            last = tag("else") + block(depth - 1, in_loop) if r.random() < 0.5 else ""
            return tag(f"if {self.truth(r.choice([1, 2]))}") + block(depth - 1, in_loop) + middle + last + tag("endif")
        if kind < 7:
            over = self.list(r.choice([0, 1, 2]))
            target, head = r.choice([("x", over), ("x", over), ("k, v", "d.items()"), ("i", "range(4)"), ("x", "messages")])
            condition = f" if {r.choice(['x' if target == 'x' else 't', self.truth(1)])}" if r.random() < 0.25 else ""
            before = list(self.names)
            self.names += target.replace(" ", "").split(",") + [f"loop.{part}" for part in r.sample(["index", "index0", "first", "last", "length", "revindex", "revindex0", "previtem", "nextitem", "depth", "cycle('a', 'b')", "changed(1)"], 3)]
            body = block(depth - 1, True)
            self.names = before
            other = tag("else") + block(depth - 1, in_loop) if r.random() < 0.2 else ""
            return tag(f"for {target} in {head}{condition}") + body + other + tag("endfor")
        if kind == 7:
            name = r.choice(["a1", "b1", "s", "n"])
            made = tag(f"set {name} = {e()}")
            self.names.append(name)
            return made
        if kind == 8:
            return tag("set ns = namespace(c=0, t='')") + tag(f"for x in {self.list(1)}") + tag(f"set ns.c = ns.c + {r.choice(['1', 'loop.index', 'x'])}") + tag("set ns.t = ns.t ~ x") + tag("endfor") + "{{ ns.c }}{{ ns.t }}"
        if kind == 9:
            name = r.choice(["mac", "render"])
            before = list(self.names)
            self.names += ["p", "q"]
            body = block(depth - 1)
            self.names = before
            return tag(f"macro {name}(p, q={self.any(0)})") + body + tag("endmacro") + "{{ " + f"{name}({e()}{r.choice(['', ', 1', ', q=2', ', q=' + self.any(0)])})" + " }}"
        if kind == 10:
            return tag("macro outer(p)") + "[{{ caller() }}|{{ p }}]" + tag("endmacro") + tag(f"call outer({e()})") + block(depth - 1) + tag("endcall")
        if kind == 11:
            return tag(f"filter {r.choice(['upper', 'trim', 'indent(2)', 'replace(%s, %s)' % (quoted(r, 'a'), quoted(r, 'b')), 'upper|lower'])}") + block(depth - 1) + tag("endfilter")
        if kind == 12:
            return r.choice([tag("raw") + "{{ x }} {% if %}\n" + tag("endraw"), "{#" + r.choice(["", "-"]) + " {{ nothing }} " + r.choice(["", "-"]) + "#}", tag("generation") + block(depth - 1) + tag("endgeneration"),
                             tag("set blk") + block(depth - 1) + tag("endset") + "{{ blk|length }}{{ blk }}", tag(f"with a1 = {e()}, b1 = 2") + block(depth - 1) + tag("endwith")])
        if kind == 13 and in_loop:
            return tag(f"if {self.truth(1)}") + tag(r.choice(["break", "continue"])) + tag("endif")
        return self.output() + self.output()


def random_template(r):
    drawer = Drawer(r)
    if r.random() < 0.5:
        return "".join(drawer.output() + r.choice(["", "|", "\n"]) for _ in range(r.randrange(1, 3)))
    return drawer.block(3)


# ---- comparing -------------------------------------------------------------------------------------------------------------

def theirs(made, template, variables):
    """The text, or None and the failure."""
    try:
        return made.from_string(template).render(**variables), ""
    except RecursionError:
        return None, "recursion"
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


def ours(command, folder, template, variables):
    with open(os.path.join(folder, "chat_template.jinja"), "w", encoding="utf-8", newline="") as file:
        file.write(template)
    more = dict(variables)
    inputs = {"messages": more.pop("messages"), "tools": more.pop("tools"), "variables": more}
    arguments = [command, "chat-template", "--tokenizer", folder, "--time", str(NOW)]
    for name, value in inputs.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(value, file)
        if name != "messages" and value is not None:
            arguments += [f"--{name}", os.path.join(folder, name)]
    result = subprocess.run(arguments + [os.path.join(folder, "messages")], capture_output=True, env=dict(os.environ, TZ="UTC"))
    if result.returncode not in (0, 1):
        raise RuntimeError(f"exit status {result.returncode}: {result.stderr.decode(errors='replace')}")
    return (result.stdout.decode(), "") if result.returncode == 0 else (None, result.stderr.decode().strip())


def compare(command, seeds):
    made = environment()
    first, last = (int(part) for part in seeds.split(".."))
    counts = {"the same": 0, "refused by both": 0, "limits": 0, "different": 0}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, last + 1):
            r = random.Random(seed)
            variables, template = dict(random_variables(r), documents=None, add_generation_prompt=False), random_template(r)
            expected, why = theirs(made, template, variables)
            more = {name: value for name, value in variables.items() if name not in ("documents", "add_generation_prompt")}
            found, message = ours(command, folder, template, more)
            if expected == found:
                counts["the same" if found is not None else "refused by both"] += 1
            elif found is None and ("64 bits" in message or "is wider than" in message or "MB" in message or "steps" in message):
                counts["limits"] += 1
            else:
                counts["different"] += 1
                print(f"seed {seed}: {template!a}\n  variables {json.dumps(more)}\n  expected {why if expected is None else repr(expected)}\n  found    {message if found is None else repr(found)}")
    print(f"Jinja2 {jinja2.__version__}: " + ", ".join(f"{count} {what}" for what, count in counts.items()))
    return counts["different"] == 0


def record(path):
    made = environment()
    with open(path, encoding="utf-8") as file:
        data = json.load(file)
    lines = []
    for snippet in data["snippets"]:
        text, _ = theirs(made, snippet["template"], data["variables"])
        lines.append(json.dumps({"template": snippet["template"], **({"error": True} if text is None else {"rendered": text})}))
    data["made_with"] = f"Jinja2 {jinja2.__version__}, tests/python/chat_templates.py --record"
    head = ",\n".join(f'"{name}": {json.dumps(data[name])}' for name in ("made_with", "now", "variables"))
    with open(path, "w", encoding="utf-8") as file:
        file.write("{" + head + ',\n"snippets": [\n' + ",\n".join(lines) + "\n]}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("command", nargs="?", help="the program deltarule")
    parser.add_argument("--seeds", default="1..400", help="A..B")
    parser.add_argument("--record", metavar="FILE", help="render the snippets of this file anew")
    options = parser.parse_args()
    if options.record:
        record(options.record)
    elif options.command:
        sys.exit(0 if compare(options.command, options.seeds) else 1)
    else:
        parser.error("name the program deltarule, or --record FILE")


main()
