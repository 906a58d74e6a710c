; A loop with a constant bound: the fuel is counted at its head.
r0 = 0
r2 = 0
again:
r3 = r1
r3 += r2
r4 = *(u8 *)(r3 + 0)
r0 += r4
r2 += 1
if r2 < 16 goto again
exit
