"""Text to token ids and back, by the C library: bytes, or the tokenizer.json of a published model."""

from __future__ import annotations

import ctypes
import os
from ctypes import byref, c_bool, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from typing import List, Optional, Sequence, Union

from ._library import check, lib

__all__ = ["Tokenizer"]

_NO_SPECIAL = 2
for _name, _result, _arguments in (
        ("dr_tokenizer_load", c_int, [c_char_p, c_void_p]), ("dr_tokenizer_bytes", c_int, [c_void_p]),
        ("dr_tokenizer_destroy", None, [c_void_p]), ("dr_tokenizer_size", c_int64, [c_void_p]),
        ("dr_tokenizer_special", c_int32, [c_void_p, c_int]), ("dr_encoder_create", c_int, [c_void_p, c_void_p]),
        ("dr_encoder_destroy", None, [c_void_p]),
        ("dr_encoder_encode", c_int, [c_void_p, c_char_p, c_size_t, c_bool, c_void_p, c_void_p]),
        ("dr_decoder_create", c_int, [c_void_p, c_int, c_void_p]), ("dr_decoder_destroy", None, [c_void_p]),
        ("dr_decoder_decode", c_int, [c_void_p, c_void_p, c_size_t, c_void_p, c_void_p])):
    getattr(lib, _name).argtypes, getattr(lib, _name).restype = _arguments, _result


class Tokenizer:
    """A tokenizer, for one thread at a time.

    Args:
        folder: with a tokenizer.json; None: ids are bytes, and 256 begins a document.

    Attributes: size: how many ids there are. bos, eos: ids that begin and end a text, -1 where there is none. start: the one in
    front of a document.
    """

    def __init__(self, folder: Optional[Union[str, os.PathLike]] = None):
        handle, encoder, decoder = c_void_p(), c_void_p(), c_void_p()
        check(lib.dr_tokenizer_bytes(byref(handle)) if folder is None else lib.dr_tokenizer_load(os.fsencode(folder), byref(handle)))
        self._handle = handle
        check(lib.dr_encoder_create(handle, byref(encoder)))
        self._encoder = encoder
        check(lib.dr_decoder_create(handle, _NO_SPECIAL, byref(decoder)))
        self._decoder = decoder
        self.size = lib.dr_tokenizer_size(handle)
        self.bos, self.eos = lib.dr_tokenizer_special(handle, 0), lib.dr_tokenizer_special(handle, 1)
        self.start = self.bos if self.bos >= 0 else self.eos
        if self.start < 0:
            raise ValueError("the tokenizer names no token that begins or ends a text: tokenizer_config.json needs a bos_token or an eos_token")

    _destroy = (("_decoder", lib.dr_decoder_destroy), ("_encoder", lib.dr_encoder_destroy), ("_handle", lib.dr_tokenizer_destroy))

    def __del__(self):
        for name, destroy in self._destroy:
            if getattr(self, name, None):
                destroy(getattr(self, name))

    def encode(self, text: str, special: bool = False) -> List[int]:
        """The ids of a text; special: with what the template adds around it."""
        data, ids, count = text.encode(), c_void_p(), c_size_t()
        check(lib.dr_encoder_encode(self._encoder, data, len(data), special, byref(ids), byref(count)))
        return list((c_int32 * count.value).from_address(ids.value)) if count.value else []

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; special tokens, and ids of no token, are left out."""
        wrong = [one for one in ids if not -2**31 <= one < 2**31]
        if wrong:
            raise ValueError(f"token id {wrong[0]} must be from -2^31 to 2^31 - 1")
        text, count = c_void_p(), c_size_t()
        check(lib.dr_decoder_decode(self._decoder, (c_int32 * len(ids))(*ids), len(ids), byref(text), byref(count)))
        return ctypes.string_at(text.value, count.value).decode(errors="replace") if count.value else ""
