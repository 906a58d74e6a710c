; if and else, and the code behind both.
r2 = *(u32 *)(r1 + 0)
r3 = *(u32 *)(r1 + 4)
if r2 > r3 goto more
r0 = 1
r0 += r2
goto out
more:
r0 = 2
r0 += r3
out:
*(u64 *)(r1 + 8) = r0
exit
