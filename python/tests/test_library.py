"""The structs of ctypes are those of the C headers: each size and each member's place, as tests/abi records them."""

import ctypes
from pathlib import Path

import pytest

pytest.importorskip("numpy")
from deltarule import _library, model

TABLE = Path(__file__).parents[2] / "tests" / "abi" / f"{_library.ABI}.txt"


def recorded():
    """{struct: (bytes, [places of its members, in their order])}, which the C compiler told."""
    made = {}
    for line in TABLE.read_text().splitlines():
        if line.startswith(" "):
            places.append(int(line.split()[-1]))
        else:
            name, size, _ = line.split()
            places = []
            made[name] = (int(size), places)
    return made


STRUCTS = {**_library._SIZES, "dr_parameter": model._Parameter, "dr_batch": model._Batch}


def test_every_struct_is_compared():
    """Whatever is a ctypes.Structure here has its name in the headers told."""
    ours = {one for module in (_library, model) for one in vars(module).values()
            if isinstance(one, type) and issubclass(one, ctypes.Structure) and one is not ctypes.Structure}
    assert ours <= set(STRUCTS.values())


@pytest.mark.parametrize("name", STRUCTS)
def test_sizes_and_places(name):
    size, places = recorded()[name]
    struct = STRUCTS[name]
    assert ctypes.sizeof(struct) == size
    if issubclass(struct, ctypes.Structure):  # else an array, of which the header has the only member
        assert [getattr(struct, field[0]).offset for field in struct._fields_] == places
