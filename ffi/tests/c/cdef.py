"""Has cffi parse amla.cdef.h as it is, and calls libamla.so through it:

    cdef.py amla.cdef.h libamla.so LAYOUT

LAYOUT has each struct's size, and the offset of each of its fields, a line each."""
import sys
from array import array

from cffi import FFI

header, library, layout = sys.argv[1:]
ffi = FFI()
ffi.cdef(open(header).read())
amla = ffi.dlopen(library)
assert amla.amla_abi_version() == amla.AMLA_ABI_VERSION

for line in open(layout):
    name, *field, number = line.split()
    got = ffi.offsetof(f"struct {name}", *field) if field else ffi.sizeof(f"struct {name}")
    assert got == int(number), line

KEYS, HEADS = 100, 16
q = array("H", bytes(2 * HEADS * amla.AMLA_MLA_D_QK))
kv = array("H", [0x3E80]) * (KEYS * amla.AMLA_MLA_D_QK)  # 0.25 in BF16
o, lse = array("f", [0]) * (HEADS * amla.AMLA_MLA_D_V), array("f", [0]) * HEADS
memory = ffi.new("char[]", amla.AMLA_WORKSPACE_MAX + amla.AMLA_WORKSPACE_ALIGN)
address = int(ffi.cast("uintptr_t", memory))
workspace = memory + -address % amla.AMLA_WORKSPACE_ALIGN
status = amla.amla_mla_decode(
    ffi.from_buffer("uint16_t[]", q), ffi.from_buffer("uint16_t[]", kv), 1, 1, KEYS, HEADS, 1 / 24,
    ffi.from_buffer("float[]", o), ffi.from_buffer("float[]", lse), workspace, amla.AMLA_WORKSPACE_MAX,
)
assert status == amla.AMLA_OK, ffi.string(amla.amla_status_string(status))
print(f"o[0] = {o[0]:g}, lse[0] = {lse[0]:g}")

call, detail = ffi.new("struct amla_call *"), ffi.new("struct amla_error_detail *")
detail.struct_size = ffi.sizeof("struct amla_error_detail")
status = amla.amla_run(call, workspace, amla.AMLA_WORKSPACE_MAX, detail)
assert status == amla.AMLA_ERROR_STRUCT_SIZE and b"not set" in ffi.string(detail.message)
