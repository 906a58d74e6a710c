; A function of its own frame; it also reads its caller's.
fn main:
*(u64 *)(r10 - 8) = 40
r1 = r10
r1 += -8
r2 = 2
call fn sum
exit
fn sum:
*(u64 *)(r10 - 16) = r2
r0 = *(u64 *)(r1 + 0)
r3 = *(u64 *)(r10 - 16)
r0 += r3
exit
