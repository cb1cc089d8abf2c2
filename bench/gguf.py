"""A dense model of random weights as a GGUF file, for llama.cpp's server: the llama architecture, 16-bit weights, a byte-level tokenizer."""
import random, struct

UINT32, FLOAT32, STRING, ARRAY, INT32 = 4, 6, 8, 9, 5  # types of values
F32, F16 = 0, 1                                       # types of tensors
ALIGNMENT = 32
NORMAL, CONTROL = 1, 3  # types of tokens


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def pair(key, kind, value):
    head = text(key) + struct.pack("<I", kind)
    if kind == STRING:
        return head + text(value)
    if kind == ARRAY:
        words = isinstance(value[0], str)
        return head + struct.pack("<IQ", STRING if words else INT32, len(value)) + (
            b"".join(map(text, value)) if words else struct.pack(f"<{len(value)}i", *value))
    return head + struct.pack("<f" if kind == FLOAT32 else "<I", value)


def halves(draw, count, exponent):
    """So many 16-bit floats of both signs, of magnitudes from 2^exponent to twice that."""
    bits = int.from_bytes(draw.randbytes(2 * count), "little")
    every = int.from_bytes(b"\x01\x00" * count, "little")
    return (bits & every * 0x83FF | every * ((15 + exponent) << 10)).to_bytes(2 * count, "little")


def write(path, tokens, merges, hidden, layers, heads, intermediate, context):
    """tokens: texts of all ids, the last of which ends a text; merges: pairs of texts, in order."""
    tensors = [("token_embd.weight", (hidden, len(tokens)))]
    for i in range(layers):
        tensors += [(f"blk.{i}.{name}.weight", shape) for name, shape in [
            ("attn_norm", (hidden,)), ("attn_q", (hidden, hidden)), ("attn_k", (hidden, hidden)), ("attn_v", (hidden, hidden)),
            ("attn_output", (hidden, hidden)), ("ffn_norm", (hidden,)), ("ffn_gate", (hidden, intermediate)),
            ("ffn_up", (hidden, intermediate)), ("ffn_down", (intermediate, hidden))]]
    tensors += [("output_norm.weight", (hidden,)), ("output.weight", (hidden, len(tokens)))]
    pairs = [pair("general.architecture", STRING, "llama"), pair("general.name", STRING, "random weights"),
             pair("general.alignment", UINT32, ALIGNMENT), pair("general.file_type", UINT32, 1)]
    pairs += [pair("llama." + key, UINT32, value) for key, value in [
        ("context_length", context), ("embedding_length", hidden), ("block_count", layers), ("feed_forward_length", intermediate),
        ("attention.head_count", heads), ("attention.head_count_kv", heads), ("rope.dimension_count", hidden // heads),
        ("vocab_size", len(tokens))]]
    pairs += [pair("llama.attention.layer_norm_rms_epsilon", FLOAT32, 1e-6), pair("tokenizer.ggml.model", STRING, "gpt2"),
              pair("tokenizer.ggml.pre", STRING, "gpt-2"), pair("tokenizer.ggml.tokens", ARRAY, tokens),
              pair("tokenizer.ggml.token_type", ARRAY, [NORMAL] * (len(tokens) - 1) + [CONTROL]),
              pair("tokenizer.ggml.merges", ARRAY, [" ".join(merge) for merge in merges]),
              pair("tokenizer.ggml.bos_token_id", UINT32, len(tokens) - 1), pair("tokenizer.ggml.eos_token_id", UINT32, len(tokens) - 1)]
    draw, offset, infos, blocks = random.Random(1), 0, b"", []
    for name, shape in tensors:
        one = len(shape) == 1
        count = shape[0] if one else shape[0] * shape[1]
        data = struct.pack("<f", 1.0) * count if one else halves(draw, count, -6)
        infos += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, F32 if one else F16, offset)
        data += b"\0" * (-len(data) % ALIGNMENT)
        blocks.append(data)
        offset += len(data)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs) + infos
    with open(path, "wb") as file:
        file.write(head + b"\0" * (-len(head) % ALIGNMENT))
        file.writelines(blocks)
