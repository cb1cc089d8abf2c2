#!/usr/bin/env python3
"""Tokenizers beside Hugging Face's `tokenizers`: megabytes of text a second on one thread, both in one run, as ratios.

    bench/peers_tokenizers.py LIBRARY TEXT [--tokenizer DIR ...] [--megabytes N]

LIBRARY is libdeltarule.so. The text is encoded in pieces of whole lines, by each side in turn, several times; printed are the
medians and the median of the ratios of neighbouring runs. Both must give the same ids. Without --tokenizer two are made of the
text: a byte-level one of 32768 ids as `deltarule tokenizer train` makes it, and one with byte fallback as Llama 2's, which has
the ASCII tokens of the first. Processor time counts, not the clock's, so that a busy machine changes little.
"""
import argparse, ctypes, json, os, statistics, sys, tempfile, time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
try:
    import tokenizers
except ImportError:
    print("skipped: there is no package tokenizers here")
    sys.exit(0)

PIECE = 1 << 16 # bytes of a piece, some lines more or less
RUNS = 5


class Ours:
    """An encoder of the library, through its C functions."""

    def __init__(self, library, folder):
        self.c = ctypes.CDLL(library)
        self.c.dr_last_error.restype = ctypes.c_char_p
        self.tokenizer, self.encoder = ctypes.c_void_p(), ctypes.c_void_p()
        self.must(self.c.dr_tokenizer_load(folder.encode(), ctypes.byref(self.tokenizer)))
        self.must(self.c.dr_encoder_create(self.tokenizer, ctypes.byref(self.encoder)))

    def must(self, status):
        if status != 0:
            sys.exit(self.c.dr_last_error().decode())

    def encode(self, text):
        ids, count = ctypes.POINTER(ctypes.c_int32)(), ctypes.c_size_t()
        self.must(self.c.dr_encoder_encode(self.encoder, text, ctypes.c_size_t(len(text)), False, ctypes.byref(ids), ctypes.byref(count)))
        return ids, count.value


def pieces_of(path, most):
    with open(path, "rb") as file:
        data = file.read(most)
    data = data[:data.rfind(b"\n") + 1] or data
    pieces, at = [], 0
    while at < len(data):
        end = data.find(b"\n", at + PIECE) + 1 or len(data)
        pieces.append(data[at:end])
        at = end
    return [(piece, piece.decode()) for piece in pieces]


def made_byte_level(library, pieces, folder):
    """As `deltarule tokenizer train` makes it."""
    class Options(ctypes.Structure):
        _fields_ = [("ids", ctypes.c_int64), ("least_count", ctypes.c_int64), ("end_of_text", ctypes.c_char_p), ("progress", ctypes.c_void_p), ("context", ctypes.c_void_p)]
    c, trainer, size = ctypes.CDLL(library), ctypes.c_void_p(), ctypes.c_int64()
    options = Options(32768, 2, b"<|endoftext|>", None, None)
    begun = time.process_time()
    statuses = [c.dr_tokenizer_trainer_create(ctypes.byref(trainer))]
    statuses += [c.dr_tokenizer_trainer_add(trainer, raw, ctypes.c_size_t(len(raw))) for raw, _ in pieces]
    statuses.append(c.dr_tokenizer_trainer_write(trainer, ctypes.byref(options), folder.encode(), ctypes.byref(size)))
    if any(statuses):
        sys.exit("the training of a tokenizer failed")
    megabytes = sum(len(raw) for raw, _ in pieces) / 1e6
    print(f"training: {megabytes:.1f} MB to {size.value} ids in {time.process_time() - begun:.1f} s of processor time")
    return folder


def made_with_fallback(byte_level, folder):
    """The ASCII part of a byte-level tokenizer in the style of Llama 2's: spaces as marks, bytes for what is missing."""
    with open(os.path.join(byte_level, "tokenizer.json"), encoding="utf-8") as file:
        old = json.load(file)["model"]
    spelt = lambda token: token.replace("\u0120", "\u2581")
    plain = [spelt(token) for token in old["vocab"] if all(" " < c < "\x7f" or c == "\u0120" for c in token)]
    vocabulary = {token: number for number, token in enumerate(["<unk>"] + [f"<0x{byte:02X}>" for byte in range(256)] + plain)}
    merges = [[spelt(a), spelt(b)] for a, b in old["merges"] if spelt(a) in vocabulary and spelt(b) in vocabulary]
    marks = [{"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]
    model = {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "vocab": vocabulary, "merges": merges}
    os.makedirs(folder)
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
        json.dump({"version": "1.0", "added_tokens": [], "normalizer": {"type": "Sequence", "normalizers": marks}, "pre_tokenizer": None,
                   "post_processor": None, "decoder": None, "model": model}, file)
    return folder


def seconds(encode, inputs):
    begun = time.process_time()
    for one in inputs:
        encode(one)
    return time.process_time() - begun


def compare(library, folder, name, pieces):
    ours, theirs = Ours(library, folder), tokenizers.Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    for raw, text in pieces[:8]:
        ids, count = ours.encode(raw)
        if ids[:count] != theirs.encode(text, add_special_tokens=False).ids:
            sys.exit(f"{name}: the ids differ")
    raws, texts = [raw for raw, _ in pieces], [text for _, text in pieces]
    megabytes = sum(map(len, raws)) / 1e6
    here, there = [], []
    for _ in range(RUNS):
        here.append(megabytes / seconds(ours.encode, raws))
        there.append(megabytes / seconds(lambda text: theirs.encode(text, add_special_tokens=False), texts))
    ratio = statistics.median(a / b for a, b in zip(here, there))
    print(f"{name}: {statistics.median(here):.1f} MB/s, tokenizers {tokenizers.__version__} {statistics.median(there):.2f} MB/s: {ratio:.1f} times")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("shared", metavar="LIBRARY", help="libdeltarule.so")
    parser.add_argument("text", help="a file of UTF-8 text, some megabytes of it")
    parser.add_argument("--tokenizer", nargs="*", default=[], metavar="DIR", help="folders with tokenizer.json")
    parser.add_argument("--megabytes", type=float, default=4, help="how much of the text is encoded")
    parser.add_argument("--training-megabytes", type=float, default=40, help="how much of the text the byte-level one is made of")
    options = parser.parse_args()
    pieces = pieces_of(options.text, int(options.megabytes * 1e6))
    for folder in options.tokenizer:
        compare(options.shared, folder, os.path.basename(os.path.normpath(folder)), pieces)
    if options.tokenizer:
        return
    with tempfile.TemporaryDirectory() as scratch:
        learnt = pieces_of(options.text, int(options.training_megabytes * 1e6))
        byte_level = made_byte_level(options.shared, learnt, os.path.join(scratch, "bytes"))
        compare(options.shared, byte_level, "byte level", pieces)
        compare(options.shared, made_with_fallback(byte_level, os.path.join(scratch, "marks")), "marks and byte fallback", pieces)


main()
