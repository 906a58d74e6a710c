r0 = *(u64 *)(r1 + 0)
r0 = be16 r0
r2 = *(u64 *)(r1 + 8)
r2 = bswap32 r2
r3 = *(u64 *)(r1 + 16)
r3 = bswap64 r3
r3 = le32 r3
r3 = le64 r3
r0 += r2
r0 += r3
exit
