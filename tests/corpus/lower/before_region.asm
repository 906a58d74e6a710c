; A pointer may lie before its value as long as the access does not: the offset must wrap, so it is added.
; map .data global 4 64 1
; map table array 4 64 4
*(u32 *)(r10 - 4) = 1
r1 = map[table] ll
r2 = r10
r2 += -4
call map_lookup_elem
if r0 == 0 goto none
r0 += -8
r0 = *(u64 *)(r0 + 16)
exit
none:
r0 = 0
exit
