#!/usr/bin/env python3
"""Writes the .data files beside it: cases of the instruction set with the results that RFC 9669 asks for.

A model of its own, on Python's integers; it shares nothing with the interpreter that the cases test.
Run it here after a change: `python3 model.py`; the files are committed.
"""
import operator

M64 = (1 << 64) - 1
A, B = 0xFEDCBA9876543210, 0x8000000F00000005
WIDTHS = ((64, "r"), (32, "w"))

HEAD = """# %s
# One case a line: `instruction | instruction | ... => r0`; `mem HEX:` in front is the memory behind r1.
# Written by model.py. `! WHY` at the end: rbpf 0.4.1 is wrong there, and the test wants to see it.
"""


def signed(value, bits):
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def quotient(a, b):
    """Division that rounds toward zero; 0 for a zero divisor."""
    return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def remainder(a, b):
    """Remainder with the dividend's sign; the dividend for a zero divisor."""
    return a - b * quotient(a, b)


def alu(op, w, a, b):
    mask = (1 << w) - 1
    a, b = a & mask, b & mask
    sa, sb = signed(a, w), signed(b, w)
    return mask & {
        "+=": lambda: a + b,
        "-=": lambda: a - b,
        "*=": lambda: a * b,
        "/=": lambda: quotient(a, b),
        "%=": lambda: remainder(a, b),
        "s/=": lambda: quotient(sa, sb),
        "s%=": lambda: remainder(sa, sb),
        "|=": lambda: a | b,
        "&=": lambda: a & b,
        "^=": lambda: a ^ b,
        "<<=": lambda: a << (b % w),
        ">>=": lambda: a >> (b % w),
        "s>>=": lambda: sa >> (b % w),
        "=": lambda: b,
    }[op]()


def write(name, about, cases):
    """Cases are (text, r0) or (text, r0, why rbpf is wrong)."""
    with open(name, "w") as out:
        out.write(HEAD % about)
        for text, r0, *why in cases:
            out.write(f"{text} => {r0 & M64:#x}" + "".join(f" ! {w}" for w in why if w) + "\n")


def arithmetic():
    for op in "+= -= *= /= %= s/= s%= |= &= ^= <<= >>= s>>= =".split():
        for w, r in WIDTHS:
            yield from two_operand(op, w, r)
            if op in ("/=", "%=", "s/=", "s%="):
                yield from division_corners(op, w, r)
    for w, r in WIDTHS:
        yield f"r0 = {A:#x} ll | {r}0 = -{r}0 | exit", -A & ((1 << w) - 1)
        yield from sign_extension(w, r)
    for op in ("le", "be", "bswap"):
        for bits in (16, 32, 64):
            value = A & ((1 << bits) - 1)
            if op != "le":
                value = int.from_bytes(value.to_bytes(bits // 8, "little"), "big")
            yield f"r0 = {A:#x} ll | r0 = {op}{bits} r0 | exit", value, op == "bswap" and "rbpf does not know bswap"


def two_operand(op, w, r):
    """With a register, then with an immediate; r0 keeps both results, the first 31 times."""

    def both(op):
        first = alu(op, w, A, b)
        return first * 31 + alu(op, w, first, imm) & M64

    for b, imm in ((B, -7), (0x7FFFFFE000000005 if w == 64 else 0xFFFFFFF9, 3)):
        text = f"r0 = {A:#x} ll | r1 = {b:#x} ll | {r}0 {op} {r}1 | r2 = r0 | {r}0 {op} {imm} | r2 *= 31 | r0 += r2 | exit"
        unsigned = op[1:] if op in ("s/=", "s%=") else op
        yield text, both(op), both(unsigned) != both(op) and "rbpf runs signed division unsigned"


def division_corners(op, w, r):
    """By zero, and the minimum by -1."""
    why = op.endswith("%=") and w == 32 and "rbpf does not truncate the dividend"
    yield f"r0 = {A:#x} ll | r1 = 0 | {r}0 {op} {r}1 | exit", alu(op, w, A, 0), why
    yield f"r0 = {A:#x} ll | {r}0 {op} 0 | exit", alu(op, w, A, 0), why
    why = op.startswith("s") and "rbpf runs signed division unsigned"
    yield f"r0 = {1 << (w - 1):#x} ll | {r}0 {op} -1 | exit", alu(op, w, 1 << (w - 1), -1), why


def sign_extension(w, r):
    for bits in (8, 16, 32)[: 3 if w == 64 else 2]:
        for value in (0x11223344D5E6F788, 0x7F7F7F7F7F7F7F7F):
            mask = (1 << w) - 1
            want = signed(value, bits) & mask
            yield f"r1 = {value:#x} ll | {r}0 = (s{bits}){r}1 | exit", want, want != value & mask and "rbpf runs MOVSX as MOV"


CONDITIONS = {
    "==": (operator.eq, False),
    "!=": (operator.ne, False),
    ">": (operator.gt, False),
    ">=": (operator.ge, False),
    "<": (operator.lt, False),
    "<=": (operator.le, False),
    "s>": (operator.gt, True),
    "s>=": (operator.ge, True),
    "s<": (operator.lt, True),
    "s<=": (operator.le, True),
    "&": (lambda a, b: a & b != 0, False),
}
# Registers of the jump tests, and what is compared: a register with an immediate, or with another one.
REGS = {"1": 0x1FFFFFFFD, "2": 0xFFFFFFFFFFFFFFFD, "3": 5}
NEGATIVE = [("1", -3), ("2", -3), ("3", -3)]
OTHERS = [("3", 5), ("3", 6), ("2", 5), ("1", "2"), ("2", "1"), ("3", "3"), ("3", "2"), ("2", "3"), ("3", 2)]


def jumps():
    for cond in CONDITIONS:
        for w, r in WIDTHS:
            yield jump_case(cond, w, r, NEGATIVE)
            yield jump_case(cond, w, r, OTHERS)
    yield "r0 = 1 | goto +1 | r0 = 2 | exit", 1
    yield "r0 = 1 | gotol +1 | r0 = 2 | exit", 1
    yield "r0 = 0 | goto b | a: | r0 += 1 | exit | b: | r0 += 10 | gotol a", 11
    yield "r0 = 0 | r1 = 1000 | a: | r0 += r1 | r1 -= 1 | if r1 != 0 goto a | exit", sum(range(1001))
    yield "r0 = 0 | r1 = 7 | a: | r0 += 1 | w1 s>>= 1 | if w1 s> 0 goto a | exit", 3


def jump_case(cond, w, r, tests):
    """r0 gets a bit for each jump that is not taken."""
    test, is_signed = CONDITIONS[cond]

    def holds(a, b):
        mask = (1 << w) - 1
        return test(signed(a, w), signed(b, w)) if is_signed else test(a & mask, b & mask)

    text, want, theirs = "r1 = 0x1fffffffd ll | r2 = -3 | r3 = 5 | r0 = 0", 0, 0
    for n, (a, b) in enumerate(tests):
        value = REGS[b] if isinstance(b, str) else b
        text += f" | if {r}{a} {cond} {r + b if isinstance(b, str) else b} goto +1 | r0 |= {1 << n:#x}"
        want |= (not holds(REGS[a], value)) << n
        zero_extended = value if is_signed or isinstance(b, str) else value & 0xFFFFFFFF
        theirs |= (not holds(REGS[a], zero_extended)) << n
    return text + " | exit", want, theirs != want and "rbpf does not sign-extend the immediates of jumps"


MEM = bytes.fromhex("8192a3b4c5d6e7f81122334455667708")


def memory():
    at = f"mem {MEM.hex()}: "
    for bits in (8, 16, 32, 64):
        for off in (0, 8):
            value = int.from_bytes(MEM[off : off + bits // 8], "little")
            yield f"{at}r0 = *(u{bits} *)(r1 + {off}) | exit", value
            if bits < 64:
                text = f"{at}r0 = *(s{bits} *)(r1 + {off}) | exit"
                yield text, signed(value, bits), "rbpf does not know sign-extending loads"
        old, mask = 0x0102030405060708, (1 << bits) - 1
        for value, operand in ((A, "r2"), (-2, "-2")):
            text = f"r1 = {old:#x} ll | r2 = {A:#x} ll | *(u64 *)(r10 - 16) = r1 | *(u{bits} *)(r10 - 16) = {operand}"
            yield text + " | r0 = *(u64 *)(r10 - 16) | exit", old & ~mask | value & mask
    text = f"{at}r3 = r1 | r3 += r2 | r0 = *(u8 *)(r3 - 1) | exit"
    yield text, MEM[-1], "rbpf does not pass the length in r2"
    changed = MEM[:3] + b"\x34\x12" + MEM[5:8]
    text = f"{at}*(u16 *)(r1 + 3) = 0x1234 | r0 = *(u64 *)(r1 + 0) | exit"
    yield text, int.from_bytes(changed, "little")
    yield "r0 = -1 ll | exit", -1
    yield "r0 = 0x80000000 ll | exit", 0x80000000
    yield "r0 = 0x7fffffff00000000 ll | r0 >>= 32 | exit", 0x7FFFFFFF
    yield from map_references()


def map_references():
    why = "rbpf has no maps"
    value = "r1 = map[counts][0] + 4 ll | *(u32 *)(r1 + 0) = 7 | r1 = map[counts][0] + 0 ll | r0 = *(u64 *)(r1 + 0) | exit"
    yield value, 7 << 32, why
    lookup = "*(u32 *)(r10 - 4) = %d | r1 = map[counts] ll | r2 = r10 | r2 += -4 | call map_lookup_elem"
    yield lookup % 1 + " | *(u64 *)(r0 + 0) = 9 | r0 = *(u32 *)(r0 + 0) | exit", 9, why
    yield lookup % 4 + " | exit", 0, why


def atomics():
    old, src, why = 0x80000000FFFFFF0F, 0xF0000000000000F3, "rbpf refuses atomics"
    start = f"r1 = {old:#x} ll | r2 = {src:#x} ll | *(u64 *)(r10 - 8) = r1"
    both = "r2 *= 3 | r0 += r2 | exit"
    ops = {"add": ("+=", operator.add), "or": ("|=", operator.or_), "and": ("&=", operator.and_), "xor": ("^=", operator.xor)}
    for w, r in WIDTHS:
        mask = (1 << w) - 1
        merge = lambda value: old & ~mask | value & mask
        for name, (sign, f) in ops.items():
            new = merge(f(old, src))
            yield f"{start} | lock *(u{w} *)(r10 - 8) {sign} r2 | r0 = *(u64 *)(r10 - 8) | r0 ^= r2 | exit", new ^ src, why
            fetch = f"{r}2 = atomic_fetch_{name}((u{w} *)(r10 - 8), {r}2)"
            yield f"{start} | {fetch} | r0 = *(u64 *)(r10 - 8) | {both}", new + (old & mask) * 3, why
        xchg = "xchg_64" if w == 64 else "xchg32_32"
        text = f"{start} | {r}2 = {xchg}(r10 - 8, {r}2) | r0 = *(u64 *)(r10 - 8) | {both}"
        yield text, merge(src) + (old & mask) * 3, why
        for r0 in (old, old ^ 1 << 40, old ^ 1):
            new = merge(src) if (r0 ^ old) & mask == 0 else old
            text = f"{start} | r0 = {r0:#x} ll | {r}0 = cmp{xchg}(r10 - 8, {r}0, {r}2) | r3 = *(u64 *)(r10 - 8)"
            yield text + " | r0 *= 3 | r0 += r3 | exit", new + (old & mask) * 3, why


def calls():
    args = "r1 = 1 | r2 = 2 | r3 = 3 | r4 = 4 | r5 = 5"
    yield args + " | call 100 | exit", 55
    yield args + " | r6 = 100 | callx r6 | exit", 55, "rbpf does not know callx"
    text = "r6 = 6 | r9 = 9 | r1 = 1 | call fn f | r0 += r6 | r0 += r9 | exit | f: | r6 = 60 | r9 = 90 | r0 = r1 | exit"
    yield text, 16
    text = "*(u64 *)(r10 - 8) = 5 | call fn f | r1 = *(u64 *)(r10 - 8) | r0 += r1 | exit"
    yield text + " | f: | *(u64 *)(r10 - 8) = 7 | r0 = *(u64 *)(r10 - 8) | exit", 12
    text = "r1 = 6 | call fn f | exit | f: | r0 = 1 | if r1 s<= 1 goto end | r6 = r1 | r1 += -1 | call fn f | r0 *= r6 | end: | exit"
    yield text, 720, "rbpf overflows on a call backward"
    text = "r1 = r10 | r1 += -16 | *(u64 *)(r1 + 0) = 2 | call fn f | r0 = *(u64 *)(r10 - 16) | exit"
    yield text + " | f: | *(u64 *)(r10 - 16) = 3 | *(u64 *)(r1 + 0) = 4 | exit", 4
    yield "r1 = fn f ll | r0 = 3 | exit | f: | r0 = 4 | exit", 3


write("alu.data", "Arithmetic: two operands in both widths, with registers and immediates; negation, moves, byte order.", arithmetic())
write("jump.data", "Jumps: every condition in both widths; r0 has a bit for each jump not taken.", jumps())
write("memory.data", "Loads, stores and 64-bit immediates.", memory())
write("atomic.data", "Atomic operations: memory after them, and what they fetch.", atomics())
write("call.data", "Calls: functions keep r6 to r9 and have stacks of their own; helper 100 gives r1 + 2 r2 + 3 r3 + 4 r4 + 5 r5.", calls())
