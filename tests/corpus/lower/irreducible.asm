; A jump into a loop: the region gets a dispatch block, the rest stays structured.
; raw
r0 = 0
if r2 > 8 goto second
first:
r0 += 1
second:
r0 += 2
if r0 < 100 goto first
if r0 != 101 goto out
r0 = 0
out:
exit
