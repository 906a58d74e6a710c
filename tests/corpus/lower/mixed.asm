; One instruction, two regions: the tag of the pointer decides.
; map .bss global 4 16 1
r2 = *(u64 *)(r1 + 0)
*(u64 *)(r10 - 8) = 1
r3 = r10
r3 += -8
if r2 == 0 goto use
r3 = map[.bss][0] ll
use:
r0 = *(u64 *)(r3 + 0)
exit
