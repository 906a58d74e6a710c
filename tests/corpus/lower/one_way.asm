; A branch that the verifier proves is taken leaves no test and no dead code.
r2 = *(u8 *)(r1 + 0)
r2 &= 7
if r2 < 8 goto small
r0 = *(u64 *)(r1 + 0)
r0 /= r2
exit
small:
r0 = r2
exit
