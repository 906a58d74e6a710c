; A loop in a loop, left in the middle.
r0 = 0
r2 = 0
outer:
r3 = 0
inner:
r0 += r3
if r0 > 10 goto out
r3 += 1
if r3 < 4 goto inner
r2 += 1
if r2 < 4 goto outer
r0 = 0
out:
exit
