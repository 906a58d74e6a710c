; Accesses to the context have constant addresses, hence no bounds check.
; ctx 32
r0 = *(u8 *)(r1 + 0)
r2 = *(u16 *)(r1 + 2)
r3 = *(s8 *)(r1 + 5)
r4 = *(s32 *)(r1 + 8)
r0 += r2
r0 += r3
r0 += r4
*(u64 *)(r1 + 16) = r0
*(u32 *)(r1 + 24) = -1
exit
