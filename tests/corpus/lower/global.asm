; Global data have constant addresses in their own memory.
; map .bss global 4 64 1
r1 = map[.bss][0] + 8 ll
r2 = *(u64 *)(r1 + 0)
r2 += 1
*(u64 *)(r1 + 0) = r2
r0 = *(u32 *)(r1 + 16)
exit
