; The entry function's stack has constant addresses; a variable offset needs the register.
r3 = 7
*(u64 *)(r10 - 8) = r3
*(u64 *)(r10 - 16) = 0
r2 = *(u8 *)(r1 + 0)
r2 &= 8
r4 = r10
r4 += -16
r4 += r2
r0 = *(u64 *)(r4 + 0)
exit
