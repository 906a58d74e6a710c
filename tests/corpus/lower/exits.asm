; A chain of tests with one common exit must not nest.
r0 = 1
r2 = *(u32 *)(r1 + 0)
if r2 == 0 goto out
r0 = 2
r3 = *(u32 *)(r1 + 4)
if w3 s< 5 goto out
r0 = 3
if r3 & 8 goto out
r0 = 4
if r2 != r3 goto out
r0 = 5
out:
exit
