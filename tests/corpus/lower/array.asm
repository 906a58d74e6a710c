; Look-ups of arrays are inlined: a comparison and a multiply or shift.
; map counters array 4 8 16
; map records array 4 24 5
*(u32 *)(r10 - 4) = 3
r1 = map[counters] ll
r2 = r10
r2 += -4
call map_lookup_elem
if r0 == 0 goto none
r3 = 1
lock *(u64 *)(r0 + 0) += r3
r1 = map[records] ll
r2 = r10
r2 += -4
call map_lookup_elem
if r0 == 0 goto none
r0 = *(u64 *)(r0 + 16)
exit
none:
r0 = 0
exit
