; Each 64-bit operation is one Wasm instruction; immediates are sign-extended.
r0 = *(u64 *)(r1 + 0)
r2 = *(u64 *)(r1 + 8)
r0 += r2
r0 -= -5
r0 *= 3
r0 |= r2
r0 &= -16
r0 ^= 0x7fffffff
r0 <<= 3
r0 >>= r2
r0 s>>= 1
r0 = -r0
r3 = (s8)r0
r3 = (s32)r3
r0 += r3
exit
