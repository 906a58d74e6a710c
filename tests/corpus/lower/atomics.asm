*(u64 *)(r10 - 8) = 5
*(u64 *)(r10 - 16) = 6
r1 = 2
lock *(u64 *)(r10 - 8) += r1
lock *(u32 *)(r10 - 16) |= w1
r1 = atomic_fetch_xor((u64 *)(r10 - 8), r1)
r2 = 9
w2 = atomic_fetch_and((u32 *)(r10 - 16), w2)
r3 = 1
r3 = xchg_64(r10 - 8, r3)
r0 = 6
w0 = cmpxchg32_32(r10 - 16, w0, w3)
r0 = cmpxchg_64(r10 - 8, r0, r2)
exit
