; Hash maps go through the host; only values lie in the map's memory.
; map sessions hash 8 16 64
r6 = *(u64 *)(r1 + 0)
*(u64 *)(r10 - 8) = r6
r1 = map[sessions] ll
r2 = r10
r2 += -8
call map_lookup_elem
if r0 == 0 goto insert
r1 = *(u64 *)(r0 + 8)
r1 += 1
*(u64 *)(r0 + 8) = r1
r0 = r1
exit
insert:
*(u64 *)(r10 - 24) = r6
*(u64 *)(r10 - 16) = 1
r1 = map[sessions] ll
r2 = r10
r2 += -8
r3 = r10
r3 += -24
r4 = 0
call map_update_elem
exit
