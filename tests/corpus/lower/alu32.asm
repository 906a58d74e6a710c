; 32-bit operations wrap, operate and extend with zeros.
r0 = *(u64 *)(r1 + 0)
r2 = *(u64 *)(r1 + 8)
w0 += w2
w0 &= 255
w0 <<= 4
w0 s>>= w2
w0 = -w0
w3 = (s16)w0
w2 = w3
w0 ^= w2
w4 = -1
r0 += r4
exit
